"""Frameworks of others on Skylark's clients; each module needs the extra of its name.

==============  ====================================================================================
typed_app       ``@app.subscriber("orders")``: functions that take and return typed values
taskiq_broker   the broker of taskiq: tasks as messages
==============  ====================================================================================
"""
