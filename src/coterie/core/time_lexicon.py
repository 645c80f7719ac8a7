"""Words for time in languages with spaces between words, folded: lower case, without accents, cut at hyphens and apostrophes.

A line of the tables: words that mean the same are set apart by spaces, phrases by commas, values by bars. To add a language is
to add a table; `core/time_words.py` knows no words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

Kind = Literal[
    "day", "daypart", "part", "unit", "weekday", "month", "season", "rel", "num", "ago", "before_ago", "ahead",
    "since", "after", "before", "until", "between", "and", "to", "in", "filler", "lately",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Word:
    kind: Kind
    value: int = 0
    more: tuple[int, int] = (0, 0)
    """Of a part of a day: its hours."""


UNITS = ("day", "week", "weekend", "month", "year")
HOURS = ((5, 12), (12, 18), (17, 24), (18, 24))
"""Of morning, afternoon, evening and night; a night goes on until the next morning."""
NIGHT = 3


@dataclass(frozen=True)
class Language:
    common: str
    """Words that are in most sentences, by which the language is known."""
    days: str
    """The day before yesterday, yesterday, today, tomorrow, the day after tomorrow."""
    dayparts: str
    """This morning, this afternoon, this evening, tonight, last night, as single words or phrases."""
    parts: str
    """Morning, afternoon, evening, night."""
    units: str
    """Day, week, weekend, month, year."""
    weekdays: str
    months: str
    seasons: str
    """Spring, summer, autumn, winter."""
    rel: str
    """Last, this, next."""
    numbers: str
    """From one on."""
    ago: str = ""
    """Behind a count of days."""
    before_ago: str = ""
    """Before one."""
    ahead: str = ""
    since: str = ""
    after: str = ""
    before: str = ""
    until: str = ""
    between: str = ""
    and_: str = ""
    to: str = ""
    in_: str = ""
    """Before a month, a season or a year that stands alone."""
    filler: str = ""
    """May stand between the parts of a date."""
    lately: str = ""
    shy: str = ""
    """Words that are mostly something else: alone they do not tell the language."""

    @cached_property
    def phrases(self) -> dict[tuple[str, ...], tuple[Word, ...]]:
        """What each phrase may mean."""
        found: dict[tuple[str, ...], list[Word]] = {}
        for phrase, word in self._all():
            found.setdefault(tuple(phrase.split()), []).append(word)
        return {phrase: tuple(words) for phrase, words in found.items()}

    @cached_property
    def begins(self) -> dict[str, int]:
        """First words of phrases, with the length of the longest."""
        found: dict[str, int] = {}
        for phrase in self.phrases:
            found[phrase[0]] = max(found.get(phrase[0], 0), len(phrase))
        return found

    @cached_property
    def known_by(self) -> frozenset[str]:
        return frozenset(self.common.split())

    @cached_property
    def tells(self) -> frozenset[str]:
        """Words by which the language is known."""
        timely = {word for phrase in self.phrases for word in phrase}
        return self.known_by | (timely - frozenset(self.shy.split()))

    def _all(self) -> Iterator[tuple[str, Word]]:
        for offset, phrase in _numbered(self.days, -2):
            yield phrase, Word("day", offset)
        for place, phrase in _numbered(self.dayparts, 0):
            yield phrase, Word("daypart", -1 if place == 4 else 0, HOURS[min(place, NIGHT)])
        for place, phrase in _numbered(self.parts, 0):
            yield phrase, Word("part", place, HOURS[place])
        for value, phrase in _numbered(self.rel, -1):
            yield phrase, Word("rel", value)
        for kind, text, first in (
            ("unit", self.units, 0), ("weekday", self.weekdays, 0), ("month", self.months, 1),
            ("season", self.seasons, 0), ("num", self.numbers, 1),
        ):  # fmt: skip
            for value, phrase in _numbered(text, first):
                yield phrase, Word(kind, value)  # type: ignore[arg-type]
        for kind, text in (
            ("ago", self.ago), ("before_ago", self.before_ago), ("ahead", self.ahead), ("since", self.since),
            ("after", self.after), ("before", self.before), ("until", self.until), ("between", self.between),
            ("and", self.and_), ("to", self.to), ("in", self.in_), ("filler", self.filler), ("lately", self.lately),
        ):  # fmt: skip
            for _, phrase in _numbered(text, 0):
                yield phrase, Word(kind)  # type: ignore[arg-type]


def fold(text: str) -> str:
    """One spelling for both the tables and what people write."""
    lowered = text.lower()
    if lowered.isascii():
        return lowered
    return "".join(c for c in unicodedata.normalize("NFKD", lowered) if not unicodedata.combining(c))


def _numbered(text: str, first: int) -> Iterator[tuple[int, str]]:
    for value, group in enumerate(fold(text).split("|"), first):
        phrases = group.split(",")
        if len(phrases) == 1:
            phrases = group.split()
        for phrase in phrases:
            if phrase.strip():
                yield value, phrase.strip()


ENGLISH = Language(
    common="what when where who how why which did do does was were is are the a an of to and i we you he she they it my our"
    " your about have has had that this with for at in on there not me us",
    days="day before yesterday, the day before yesterday | yesterday | today | tomorrow"
    " | day after tomorrow, the day after tomorrow",
    dayparts=",this morning|,this afternoon|,this evening|tonight|,last night",
    parts="morning|afternoon noon|evening|night",
    units="day days|week weeks|weekend weekends|month months|year years",
    weekdays="monday|tuesday|wednesday|thursday|friday|saturday|sunday",
    months="january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sep sept|october oct"
    "|november nov|december dec",
    seasons="spring springtime|summer summertime|autumn fall|winter wintertime",
    rel="last,past,previous,this past|this,current|next,coming,upcoming,following",
    numbers="one,a,an|two,a couple of,a couple,couple of|three,a few,few|four,several|five|six|seven|eight|nine|ten|eleven|twelve",
    ago="ago,back,earlier",
    ahead="in,within",
    since="since,starting,ever since,from",
    after="after,later than,following",
    before="before,prior to,earlier than,up to",
    until="until,till,til,by,through,up until",
    between="between,from",
    and_="and",
    to="to,until,till,through",
    in_="in,of,during,early,mid,late,around,through,on,throughout",
    filler="the,of,in,early,mid,late,month of,year,on,day of",
    lately="recently,lately,these days",
)  # fmt: skip

LANGUAGES: dict[str, Language] = {
    "en": ENGLISH,
    "de": Language(
        common="was wann wo wer wie warum der die das den dem ein eine einen ist sind war waren hat haben habe ich wir du ihr er"
        " sie es und mit fur von zu in im am auf nicht mein unser uns mir mich uber hier bei gab",
        days="vorgestern|gestern|heute|morgen|ubermorgen",
        dayparts=",heute morgen,heute fruh,heute vormittag|,heute nachmittag,heute mittag|,heute abend|,heute nacht"
        "|,letzte nacht,gestern nacht",
        parts="morgen fruh vormittag morgens|nachmittag mittag|abend abends|nacht nachts",
        units="tag tage tagen|woche wochen|wochenende wochenenden weekend|monat monate monaten monats|jahr jahre jahren jahres",
        weekdays="montag montags|dienstag|mittwoch|donnerstag|freitag|samstag sonnabend|sonntag",
        months="januar janner jan|februar feb|marz|april apr|mai|juni|juli|august aug|september sept|oktober okt|november nov|dezember dez",
        seasons="fruhling fruhjahr fruhlings|sommer sommers|herbst herbstes|winter winters",
        rel="letzte letzten letzter letztes letztem vergangene vergangenen vergangener vergangenes vergangenem vorige vorigen"
        " voriger voriges vorigem|diese diesen dieser dieses diesem|nachste nachsten nachster nachstes nachstem kommende"
        " kommenden kommender kommendes kommendem",
        numbers="ein eine einem einen einer eins|zwei,ein paar|drei,einigen,wenigen|vier|funf|sechs|sieben|acht|neun|zehn|elf|zwolf",
        before_ago="vor",
        ahead="in",
        since="seit,seit dem,ab,ab dem",
        after="nach",
        before="vor",
        until="bis,bis zum,bis zu,bis ende",
        between="zwischen,von,vom",
        and_="und",
        to="bis,bis zum",
        in_="im,in,anfang,mitte,ende,seit,am,wahrend,des",
        filler="dem,den,der,das,die,des,im,am,jahr,jahre,vom,anfang,mitte,ende",
        lately="neulich,kurzlich,letztens,in letzter zeit",
    ),
    "fr": Language(
        common="que quoi qu est ce quand ou qui comment pourquoi le la les un une des du de et je nous vous il elle on tu a ai as"
        " avons ont etait sont dans avec pour sur pas mon ma notre fait dit c d l n s j se",
        days=",avant hier|hier|,aujourd hui|demain|,apres demain",
        dayparts=",ce matin|,cet apres midi,cette apres midi|,ce soir|,cette nuit|,la nuit derniere,hier soir",
        parts="matin matinee|,apres midi|soir soiree|nuit",
        units="jour jours|semaine semaines|,week end,weekend,weekends|mois|an ans annee annees",
        weekdays="lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche",
        months="janvier|fevrier|mars|avril|mai|juin|juillet|aout|septembre|octobre|novembre|decembre",
        seasons="printemps|ete|automne|hiver",
        rel="dernier derniere derniers dernieres passe passee passes passees|ce cet cette ces"
        "|,prochain,prochaine,prochains,prochaines,qui vient",
        numbers="un une|deux|trois,quelques|quatre|cinq|six|sept|huit|neuf|dix|onze|douze",
        before_ago=",il y a,y a",
        ahead="dans",
        since="depuis,depuis le,depuis l,des,a partir du,a partir de",
        after="apres,apres le",
        before="avant,avant le,avant l",
        until=",jusqu a,jusqu au,jusqu en,jusque",
        between="entre,du,de",
        and_="et",
        to="au,a,jusqu au",
        in_="en,au,de,d,debut,mi,fin,pendant,l,le",
        filler="le,la,l,les,de,d,du,au,en,debut,fin",
        lately="recemment,dernierement",
        shy="hier mars ete an mai",
    ),
    "es": Language(
        common="que cuando donde quien como por el la los las un una de del y en yo nosotros es era fue son con para sobre no mi"
        " nuestro se lo me hicimos paso hay al su",
        days="anteayer antier|ayer|hoy|manana|,pasado manana",
        dayparts=",esta manana|,esta tarde||,esta noche|anoche,ayer por la noche",
        parts=",por la manana,de la manana|,por la tarde||,por la noche",
        units="dia dias|semana semanas|,fin de semana,fines de semana|mes meses|ano anos",
        weekdays="lunes|martes|miercoles|jueves|viernes|sabado|domingo",
        months="enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre setiembre|octubre|noviembre|diciembre",
        seasons="primavera|verano|otono|invierno",
        rel=",pasado,pasada,pasados,pasadas,ultimo,ultima,ultimos,ultimas|este esta estos estas"
        "|,proximo,proxima,proximos,proximas,que viene,siguiente",
        numbers="un una uno|dos,un par de|tres,unos,unas,pocos|cuatro|cinco|seis|siete|ocho|nueve|diez|once|doce",
        ago="atras",
        before_ago="hace",
        ahead="en,dentro de",
        since="desde,desde el,a partir de,a partir del",
        after="despues de,despues del,despues",
        before="antes de,antes del",
        until="hasta,hasta el",
        between="entre,del,desde",
        and_="y,e",
        to="al,a,hasta",
        in_="en,de,del,desde,durante,el,principios de,finales de,mediados de",
        filler="el,la,los,las,de,del,en,ano,mes de,dia",
        lately="recientemente,ultimamente",
    ),
    "it": Language(
        common="che cosa quando dove chi come perche il lo la i gli le un una di del della e in io noi era sono ha abbiamo ho con per"
        " su non mio nostro si ci fatto al alla c l dell",
        days=",l altro ieri,altro ieri,avantieri|ieri|oggi|domani|dopodomani",
        dayparts="stamattina,stamani,stamane,questa mattina|,questo pomeriggio|stasera|stanotte|,ieri notte,la notte scorsa",
        parts="mattina mattino|pomeriggio|sera|notte",
        units="giorno giorni|settimana settimane|,fine settimana,weekend|mese mesi|anno anni",
        weekdays="lunedi|martedi|mercoledi|giovedi|venerdi|sabato|domenica",
        months="gennaio|febbraio|marzo|aprile|maggio|giugno|luglio|agosto|settembre|ottobre|novembre|dicembre",
        seasons="primavera|estate|autunno|inverno",
        rel="scorso scorsa scorsi scorse passato passata ultimo ultima ultimi ultime|questo questa quest queste questi"
        "|prossimo prossima prossimi prossime",
        numbers="un uno una|due,un paio di|tre,qualche,alcuni,pochi|quattro|cinque|sei|sette|otto|nove|dieci|undici|dodici",
        ago="fa",
        ahead="tra,fra,entro",
        since="da,dal,dalla,dall,a partire da,a partire dal",
        after="dopo,dopo il",
        before="prima di,prima del,prima dell,prima della",
        until="fino a,fino al,fino alla,entro",
        between="tra,fra,dal,da",
        and_="e,ed",
        to="al,a,fino al,fino a",
        in_="in,a,nel,nell,ad,di,del,dell,durante,d,l,il,inizio,fine,meta",
        filler="il,lo,la,l,i,gli,le,di,del,dell,della,nel,anno,mese di",
        lately="recentemente,ultimamente,di recente",
        shy="fa sei estate passato sera",
    ),
    "pt": Language(
        common="que quando onde quem como porque o a os as um uma de do da dos das e em eu nos era foi sao com para sobre nao meu"
        " minha nosso se fizemos no na ao foram",
        days="anteontem|ontem|hoje|amanha|,depois de amanha",
        dayparts=",esta manha,hoje de manha|,esta tarde,hoje a tarde||,esta noite,hoje a noite|,ontem a noite",
        parts=",de manha,pela manha|,a tarde,de tarde||,a noite,de noite",
        units="dia dias|semana semanas|,fim de semana,fins de semana|mes meses|ano anos",
        weekdays=",segunda feira|,terca feira|,quarta feira|,quinta feira|,sexta feira|sabado|domingo",
        months="janeiro|fevereiro|marco|abril|maio|junho|julho|agosto|setembro|outubro|novembro|dezembro",
        seasons="primavera|verao|outono|inverno",
        rel=",passado,passada,passados,passadas,ultimo,ultima,ultimos,ultimas|este esta estes estas neste nesta deste desta"
        "|,proximo,proxima,proximos,proximas,que vem,seguinte",
        numbers="um uma|dois,duas,um par de|tres,alguns,algumas,poucos|quatro|cinco|seis|sete|oito|nove|dez|onze|doze",
        ago="atras",
        before_ago="ha,faz",
        ahead=",daqui a,em,dentro de",
        since="desde,desde o,desde a,a partir de",
        after="depois de,depois do,apos",
        before="antes de,antes do,antes da",
        until="ate,ate o,ate a,ate ao",
        between="entre,de",
        and_="e",
        to="ate,a,ao",
        in_="em,de,do,no,na,durante,inicio de,fim de,meados de",
        filler="o,a,os,as,de,do,da,dos,das,em,no,na,nos,nas,ano,mes de,dia",
        lately="recentemente,ultimamente",
    ),
    "nl": Language(
        common="wat wanneer waar wie hoe waarom de het een is zijn was waren heeft hebben heb ik wij we jij je hij zij en met voor"
        " van te in op niet mijn onze ons er hier hebt deden over dat die",
        days="eergisteren|gisteren|vandaag|morgen|overmorgen",
        dayparts="vanmorgen vanochtend|vanmiddag|vanavond|vannacht|,gisternacht,gisteravond,afgelopen nacht",
        parts="ochtend morgen|middag|avond|nacht",
        units="dag dagen|week weken|weekend weekeinde|maand maanden|jaar jaren",
        weekdays="maandag|dinsdag|woensdag|donderdag|vrijdag|zaterdag|zondag",
        months="januari jan|februari feb|maart|april apr|mei|juni|juli|augustus aug|september sept|oktober okt|november nov|december dec",
        seasons="lente voorjaar|zomer|herfst najaar|winter",
        rel="vorige vorig afgelopen laatste verleden|deze dit|volgende volgend komende komend aanstaande",
        numbers="een|twee,een paar|drie,enkele|vier|vijf|zes|zeven|acht|negen|tien|elf|twaalf",
        ago="geleden",
        ahead="over,binnen",
        since="sinds,vanaf",
        after="na",
        before="voor",
        until="tot,tot en met,tot aan",
        between="tussen,van",
        and_="en",
        to="tot,tot en met,t m",
        in_="in,van,begin,eind,half,tijdens,sinds,op",
        filler="de,het,van,in,op,jaar,begin,eind,half",
        lately="onlangs,laatst,de laatste tijd",
        shy="over laatst dit",
    ),
    "ru": Language(
        common="что когда где кто как почему в на и с мы я ты вы он она они это было были был была не мой наш у о об про по за из для",
        days="позавчера|вчера|сегодня|завтра|послезавтра",
        dayparts=",сегодня утром|,сегодня днем|,сегодня вечером|,сегодня ночью|,вчера ночью,прошлой ночью",
        parts="утром утро|днем|вечером вечер|ночью ночь",
        units="день дня дней дни|неделя недели неделе неделю недель|выходные выходных|месяц месяца месяце месяцев месяцы"
        "|год года году лет годы",
        weekdays="понедельник понедельника понедельнику|вторник вторника вторнику|среда среду среды|четверг четверга"
        "|пятница пятницу пятницы|суббота субботу субботы|воскресенье воскресенья",
        months="январь января январе|февраль февраля феврале|март марта марте|апрель апреля апреле|май мая мае|июнь июня июне"
        "|июль июля июле|август августа августе|сентябрь сентября сентябре|октябрь октября октябре|ноябрь ноября ноябре"
        "|декабрь декабря декабре",
        seasons="весна весной весну весны|лето летом лета|осень осенью осени|зима зимой зиму зимы",
        rel="прошлый прошлая прошлое прошлой прошлом прошлую прошлым прошлого прошлые прошлых последний последняя последние"
        " последних последнюю|этот эта это этой этом эту этим этого эти этих"
        "|следующий следующая следующее следующей следующем следующую следующим следующего следующие будущий будущем будущей",
        numbers="один одну одна одного|два,две,пару|три,несколько|четыре|пять|шесть|семь|восемь|девять|десять|одиннадцать|двенадцать",
        ago="назад,тому назад",
        ahead="через",
        since="с,со,начиная с",
        after="после",
        before="до,перед",
        until="до,к,по",
        between="между,с",
        and_="и",
        to="по,до",
        in_="в,во,с,до,после,начале,конце,середине",
        filler="в,во,на,году,года,год,г,начале,конце",
        lately="недавно,в последнее время",
        shy="это эти этот эта этой этом эту лет",
    ),
}  # fmt: skip


@cache
def telling() -> frozenset[str]:
    """Words without one of which no question in these languages names a time."""
    timely = ("day", "daypart", "unit", "weekday", "month", "season", "lately")
    common = frozenset().union(*(language.known_by for language in LANGUAGES.values()))
    return frozenset(
        word
        for language in LANGUAGES.values()
        for phrase, meanings in language.phrases.items()
        if any(meaning.kind in timely for meaning in meanings)
        for word in phrase
        if len(phrase) == 1 or word not in common
    )
