"""``vitshap serve``: the viewer's page and an HTTP interface, for explanations and for predictions of parts of a photo.

``command`` reads the options and runs the server, ``app`` has the routes, ``schemas`` what they answer, ``protection``
checks every request before its route, ``uploads`` reads photos, ``models`` explains them, ``worker`` batches requests,
``answers`` turns results into plain data.
"""
