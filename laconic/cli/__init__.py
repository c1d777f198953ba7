"""The commands `laconic …`: arguments in, one sentence out if something is wrong.

It imports every room, and no room imports it.
"""
