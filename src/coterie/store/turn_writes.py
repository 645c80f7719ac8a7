"""Everything that changes a turn job. Every change says which state it expects. Only `engine.turns` uses this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from coterie.core.message import NOBODY, Usage
from coterie.core.turn import Claim, ClaimLost, InboxEntry, TurnJob, TurnState, WaitReason, before
from coterie.store import schema
from coterie.store.columns import json_text
from coterie.store.turn_rows import TurnRows, read_entry

_j = schema.turn_jobs
_i = schema.inbox
_b = schema.backlog

_ADD = insert(_j)
_TAKE = delete(_i).where(_i.c.position == bindparam("place"))
_ACTIVE_AGENT = exists().where(schema.agents.c.id == bindparam("agent"), schema.agents.c.state == "active")


def _newest(epoch: str) -> ColumnElement[bool]:
    """Nobody took over since."""
    meta = schema.meta.c
    # A server is free to cast values of other keys first, unless it is told when.
    newest = case((meta.key == "epoch", cast(meta.value, Integer)), else_=0)
    return ~exists().where(meta.key == "epoch", newest > bindparam(epoch))


# A turn's own steps: only under its claim, only while its agent is active.
_CLAIM = (
    update(_j)
    .where(
        _j.c.run_id == bindparam("run"),
        # A list after IN would be written out anew at every execution.
        or_(*(_j.c.state == s.value for s in before(TurnState.RUNNING))),
        or_(
            _j.c.owner.is_(None),
            _j.c.owner == bindparam("by_owner"),
            # Whoever held the home's lock before is dead; whoever had a lease is, once that is over.
            and_(_j.c.lease_until.is_(None), _j.c.epoch < bindparam("to_epoch")),
            _j.c.lease_until < bindparam("at"),
        ),
        _newest("to_epoch"),
        _ACTIVE_AGENT,
    )
    .values(
        state=TurnState.RUNNING.value,
        owner=bindparam("by_owner"),
        epoch=bindparam("to_epoch"),
        lease_until=bindparam("until"),
        waits_for=None,
        agent_id=bindparam("agent"),
        audience=bindparam("heard_by"),
        attempts=_j.c.attempts + 1,
        started_at=func.coalesce(_j.c.started_at, bindparam("at")),
    )
)
_TO_STATE = bindparam("to_state", type_=Text)
_STEP = (
    update(_j)
    .where(
        _j.c.run_id == bindparam("run"),
        _j.c.owner == bindparam("by_owner"),
        _j.c.epoch == bindparam("held"),
        _newest("held"),
        or_(
            _j.c.state == TurnState.RUNNING.value,
            # Whoever waited runs again with its next step.
            and_(_j.c.state == TurnState.WAITING.value, literal(TurnState.RUNNING.value) == _TO_STATE),
        ),
        _ACTIVE_AGENT,
    )
    .values(
        attempts=0,
        rounds=_j.c.rounds + bindparam("replies"),
        open_call=bindparam("call"),
        model=func.coalesce(bindparam("by"), _j.c.model),
        input_tokens=_j.c.input_tokens + bindparam("more_in"),
        output_tokens=_j.c.output_tokens + bindparam("more_out"),
        cached_tokens=_j.c.cached_tokens + bindparam("more_cached"),
        cost=bindparam("total"),
        state=_TO_STATE,
        waits_for=None,
        final_message_id=bindparam("final"),
        ended_at=bindparam("ended"),
    )
)


class TurnWrites:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # Coming in

    def submit(
        self, job: TurnJob, entry: InboxEntry, *, key: str | None = None, body_hash: str | None = None
    ) -> None:
        """A message and the turn that will answer it. A key stands for the newest turn that was asked for under it."""
        if key is not None:
            self._connection.execute(
                update(_j).where(_j.c.idempotency_key == key).values(idempotency_key=None)
            )
        self._add(job, key, body_hash)
        TurnRows(self._connection).post(entry)

    def delivered(self, run_ids: Sequence[str], at: str) -> None:
        """The answers of these turns have reached whoever asked."""
        self._connection.execute(update(_j).where(_j.c.run_id.in_(run_ids)).values(delivered_at=at))

    def ask_for_wake(self, job: TurnJob) -> None:
        """A turn that no message asks for. Where one waits already, that one will do."""
        # Whoever else is about to do the same for this session waits here; whoever only writes into it does not.
        self._connection.execute(
            select(schema.sessions.c.id)
            .where(schema.sessions.c.id == job.session_id)
            .with_for_update(key_share=True)
        )
        if TurnRows(self._connection).queued_wake(job.session_id) is None:
            self._add(job, None, None)

    def _add(self, job: TurnJob, key: str | None, body_hash: str | None) -> None:
        self._connection.execute(
            _ADD,
            {
                "run_id": job.run_id,
                "session_id": job.session_id,
                "message_id": job.message_id,
                "state": job.state.value,
                "epoch": 0,
                "attempts": 0,
                "rounds": 0,
                "trace_id": job.trace_id,
                "hop": job.hop,
                "idempotency_key": key,
                "body_hash": body_hash,
                "input_tokens": 0,
                "output_tokens": 0,
                "cached_tokens": 0,
                "created_at": job.created_at,
                "kind": None if job.kind == "message" else job.kind,
                "chain_json": json_text(job.chain) if job.chain else None,
                "timeout_s": job.timeout_s,
            },
        )

    def cancel_queued(self, run_id: str, at: str) -> InboxEntry | None:
        """A message that no model saw yet, taken back. None where it is too late."""
        row = self._connection.execute(select(_i).where(_i.c.run_id == run_id)).first()
        if row is None:
            return None
        self._connection.execute(_TAKE, {"place": row.position})
        self.end(run_id, TurnState.CANCELLED, at)
        return read_entry(row)

    # Running

    def claim(self, run_id: str, claim: Claim, *, agent_id: str, audience: str, at: str) -> None:
        """Make this the session's active turn. The database allows one."""
        done = self._connection.execute(
            _CLAIM,
            {
                "run": run_id,
                "by_owner": claim.owner,
                "to_epoch": claim.epoch,
                "until": claim.lease_until,
                "agent": agent_id,
                "heard_by": audience,
                "at": at,
            },
        )
        if done.rowcount != 1:
            raise ClaimLost(f"the turn {run_id} cannot run now")

    def take(self, entry: InboxEntry) -> None:
        """Out of the inbox; the caller puts it into the transcript."""
        if self._connection.execute(_TAKE, {"place": entry.position}).rowcount != 1:
            raise ClaimLost(f"the message {entry.message_id} was taken by another")

    def step(
        self,
        run_id: str,
        claim: Claim,
        *,
        agent_id: str,
        replies: int = 0,
        open_call: str | None = None,
        usage: Usage | None = None,
        cost: float | None = None,
        model: str | None = None,
        final: str | None = None,
        at: str | None = None,
    ) -> None:
        """A committed step of a running turn; the last one where it is final. Who lost its claim can commit nothing."""
        spent = usage or Usage()
        done = self._connection.execute(
            _STEP,
            {
                "run": run_id,
                "by_owner": claim.owner,
                "held": claim.epoch,
                "agent": agent_id,
                "replies": replies,
                "call": open_call,
                "by": model,
                "more_in": spent.input_tokens,
                "more_out": spent.output_tokens,
                "more_cached": spent.cached_tokens,
                "total": cost,
                "to_state": (TurnState.RUNNING if final is None else TurnState.DONE).value,
                "final": final,
                "ended": at,
            },
        )
        if done.rowcount != 1:
            raise ClaimLost(f"the turn {run_id} is no longer ours")

    def wait(self, run_id: str, claim: Claim, reason: WaitReason) -> None:
        """The session stays its own; its next step says that it runs again."""
        self._move(run_id, claim, TurnState.WAITING, waits_for=reason)

    def interrupt(
        self, run_id: str, claim: Claim, session_id: str, token: Mapping[str, Any], at: str
    ) -> None:
        """Steered away from: nobody's turn for now, with a resume token in the backlog."""
        self._move(run_id, claim, TurnState.INTERRUPTED, owner=None, lease_until=None)
        self._connection.execute(
            insert(_b).values(
                session_id=session_id,
                run_id=run_id,
                token_json=json_text(token),
                created_at=at,
            )
        )

    def resume(self, run_id: str) -> None:
        """Out of the backlog; the caller claims it."""
        if self._connection.execute(delete(_b).where(_b.c.run_id == run_id)).rowcount != 1:
            raise ClaimLost(f"the task {run_id} was taken up by another")

    def _move(self, run_id: str, claim: Claim, state: TurnState, **changes: Any) -> None:
        done = self._connection.execute(
            update(_j)
            .where(
                _j.c.run_id == run_id,
                _j.c.owner == claim.owner,
                _j.c.epoch == claim.epoch,
                _j.c.state.in_([s.value for s in before(state)]),
            )
            .values(state=state.value, **changes)
        )
        if done.rowcount != 1:
            raise ClaimLost(f"the turn {run_id} is no longer ours")

    # Ending

    def end(
        self, run_id: str, state: TurnState, at: str, *, error: str | None = None, claim: Claim | None = None
    ) -> bool:
        """Finish a turn that will not be answered. False if it had ended already, or is not under this claim."""
        query = update(_j).where(_j.c.run_id == run_id, _j.c.state.in_([s.value for s in before(state)]))
        if claim is not None:
            query = query.where(_j.c.owner == claim.owner, _j.c.epoch == claim.epoch)
        done = self._connection.execute(
            query.values(state=state.value, error=error, ended_at=at, open_call=None, waits_for=None)
        )
        if done.rowcount != 1:
            return False
        self._connection.execute(delete(_b).where(_b.c.run_id == run_id))
        return True

    def disown(self, agent_id: str) -> None:
        """An agent that is purged: turns that it ran in others' sessions are nobody's."""
        self._connection.execute(update(_j).where(_j.c.agent_id == agent_id).values(agent_id=NOBODY))

    def forget_all(self, session_id: str, at: str) -> list[TurnJob]:
        """Empty a session's inbox and backlog; its unfinished turns end as cancelled or aborted."""
        unfinished = TurnRows(self._connection).unfinished(session_id)
        for job in unfinished:
            state = TurnState.CANCELLED if job.state is TurnState.QUEUED else TurnState.ABORTED
            self.end(job.run_id, state, at)
        self._connection.execute(delete(_i).where(_i.c.session_id == session_id))
        self._connection.execute(delete(_b).where(_b.c.session_id == session_id))
        return unfinished
