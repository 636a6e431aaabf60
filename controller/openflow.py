"""The OpenFlow library, under one name for each thing: os-ken, or the original Ryu 4.34 where that is what is installed.

os-ken is run on eventlet, as Ryu is: in its native-thread hub a lost switch is never reported. Ryu wants a name that eventlet no
longer has; it is supplied here, so that ``python -m controller.openflow controller.ocs_app`` is ``ryu-manager``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from importlib import metadata

# Both libraries choose their hub when they are imported; a hub of threads would break what is said above.
os.environ["OSKEN_HUB_TYPE"] = os.environ["RYU_HUB_TYPE"] = "eventlet"
# epoll's timeout is in whole milliseconds, rounded up; select's is exact, and there are few descriptors here.
os.environ["EVENTLET_HUB"] = "selects"
# It says on every start that it is only maintained and not developed, which is known.
warnings.filterwarnings("ignore", "\nEventlet is deprecated", Warning)

import eventlet.wsgi  # noqa: E402

if importlib.util.find_spec("os_ken") is not None:
    # app_manager comes first: os_ken.controller.controller needs it to have been imported.
    from os_ken import cfg
    from os_ken.base import app_manager
    from os_ken.base.app_manager import OSKenApp as App
    from os_ken.controller import controller, ofp_event
    from os_ken.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
    from os_ken.lib import hub
    from os_ken.ofproto import ofproto_v1_3, ofproto_v1_3_parser

    LIBRARY = f"os-ken {metadata.version('os-ken')}"
else:
    eventlet.wsgi.ALREADY_HANDLED = object()  # gone since eventlet 0.30.3
    from ryu import cfg
    from ryu.base import app_manager
    from ryu.base.app_manager import RyuApp as App
    from ryu.controller import controller, ofp_event
    from ryu.controller.handler import DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
    from ryu.lib import hub
    from ryu.ofproto import ofproto_v1_3, ofproto_v1_3_parser

    LIBRARY = f"Ryu {metadata.version('ryu')}"

__all__ = [
    "DEAD_DISPATCHER",
    "LIBRARY",
    "MAIN_DISPATCHER",
    "App",
    "controller",
    "hub",
    "ofp_event",
    "ofproto_v1_3",
    "ofproto_v1_3_parser",
    "run_app",
    "set_ev_cls",
]


def run_app(module: str, host: str, port: int) -> None:
    """Run an app with switches connecting to ``host``:``port`` until it ends. Both libraries do without their manager.

    Raises OSError where another listens there already: the libraries would share the port with it, and get half of the switches.
    """
    hub.patch()
    hub.listen((host, port), reuse_port=False).close()
    cfg.CONF.set_override("ofp_listen_host", host)
    cfg.CONF.set_override("ofp_tcp_listen_port", port)
    app_manager.AppManager.run_apps([module])


if __name__ == "__main__":
    from ryu.cmd.manager import main

    main(sys.argv[1:])
