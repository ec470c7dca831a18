"""One file for each endpoint: requests in its protocol, and its responses."""
