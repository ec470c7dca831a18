"""Requests and responses over HTTP: their schemas, errors, access checks and writers."""
