"""The page: lays out, binds and calls `ChatService`. No tensor and no SQL in here.

`app.PageServer` serves it. The browser holds ids only; what is shown comes from the service.
"""
