"""Signing in to the dashboard in tests, as a browser does."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape

import aiohttp

from harness import ROOT_KEY, TestBus

HTML = {"Accept": "text/html"}


async def a_login_form(bus: TestBus, http: aiohttp.ClientSession | None = None) -> dict[str, str]:
    """The hidden fields of the form for signing in; the session's cookies go with it."""
    async with (http or bus.http).get(f"{bus.url}/dashboard/login", headers=HTML) as response:
        return hidden_fields(await response.text())


def hidden_fields(page: str) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page)
    return {name: unescape(value) for name, value in found}


@asynccontextmanager
async def a_browser(bus: TestBus, secret: str = ROOT_KEY, **fields: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A client with cookies of its own that has signed in."""
    # It takes cookies of an address, which is no name.
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), headers=HTML) as http:
        form = await a_login_form(bus, http)
        answer = await http.post(
            f"{bus.url}/dashboard/login", data=form | {"token": secret, **fields}, allow_redirects=False
        )
        assert answer.status == 303, await answer.text()
        yield http
