"""What stands before every HTTP server of ours: who may call, how much, and the server itself."""
