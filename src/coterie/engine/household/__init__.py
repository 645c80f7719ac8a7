"""The household: who lives here, its files, and agent.yaml and the registry in step."""
