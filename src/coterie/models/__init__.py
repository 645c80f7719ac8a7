"""The language models that agents speak through. A provider's module loads when one of its models is first used."""
