"""What talks to people: one thin file a command. Heavy imports happen inside the commands."""
