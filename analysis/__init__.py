"""From run records to tables and figures: `python -m analysis DIR`, or in a notebook:

from analysis import figures, load, report
loaded = load.read("out/study")                      # the study and its trials
figures.of_study(loaded)                             # its figures by name
report.write(loaded, "report")                       # figures and tables as Markdown and HTML
"""
