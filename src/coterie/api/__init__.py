"""The doors that programs use: WebSocket RPC and HTTP over the same methods."""
