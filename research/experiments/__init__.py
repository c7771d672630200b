"""The paper's questions, asked again: `make study STUDY=sharing SCALE=smoke`.

A study is a file in studies/, a scale one in scales/. Of both plan.py makes steps, each one command
in a directory named by a digest of all that shapes it. run.py runs what is missing; report.py
judges the claims.
"""
