"""The users' benchmark: plain decoding and ways to draft, in turn, on their machine and their
prompts.

Measuring makes runs, of counts and times; figures are derived from runs; sheets and charts show
figures. A file of results holds the setup and the runs, so everything can be shown again from it.
"""
