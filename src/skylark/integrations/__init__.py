"""Frameworks of others on Skylark's clients; each needs an extra.

==============  ====================================================================================
typed_app       ``@app.subscriber("orders")``: functions that take and return typed values
taskiq_broker   the broker of taskiq: tasks as messages
kombu           the transport of kombu, and so of Celery: ``skylark+rocketmq://``
kombu_clients   the clients of one kombu connection
==============  ====================================================================================
"""
