"""Several models behind one address: a process for each, started when a request needs it."""
