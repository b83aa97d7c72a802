"""The explorer: a local page where every parameter has a control and every curve answers at once.

`unhinge explore` opens it; :func:`unhinge.web.app.make_app` makes it. Needs the extra `web`.
"""
