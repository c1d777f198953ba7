"""Records of runs, and what is written from them: summaries, projections, charts and the page.

It imports the library and `lab`.
"""
