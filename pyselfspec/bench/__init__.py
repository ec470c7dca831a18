"""The users' benchmark: plain decoding and drafting variants, measured in turn on a machine.

measuring.py produces runs, of counts and times; figures.py derives figures; tables.py and report.py
show them. A file of results holds the setup and the runs, from which all figures can be derived.
"""
