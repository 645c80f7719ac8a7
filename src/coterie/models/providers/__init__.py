"""One file per kind of provider: `PROVIDER` in `openai_chat.py` is the type `openai-chat`. A file put here is found by itself."""
