"""The parts of `chat`: its loop and commands, what shows answers, and what reads the keyboard."""
