"""The page's style sheet and its few lines of script; without the script the page only lacks pointing and switching.

Colours are named by what they say, once for light and once for dark; tests compute their contrast from here.
"""

from __future__ import annotations

import base64
import hashlib

#: Name -> (light, dark).
COLOURS: dict[str, tuple[str, str]] = {
    "page": ("#f6f6f3", "#121417"),
    "card": ("#ffffff", "#1a1d21"),
    "ink": ("#191b1f", "#eceef1"),
    "muted": ("#5a5f68", "#a3a9b3"),
    "line": ("#dcdcd6", "#33383f"),
    "good": ("#146c43", "#63cf95"),
    "fair": ("#1c5fb0", "#7db4f5"),
    "weak": ("#8a5300", "#e5ad4e"),
    "bad": ("#b3211b", "#ff8f85"),
    "void": ("#6d3fa0", "#c6a2f2"),
    "none": ("#5a5f68", "#a3a9b3"),
    "lead": ("#1f4fa3", "#8ab8ff"),
    "second": ("#b04a00", "#ffa861"),
    "third": ("#0b6e69", "#5ed0c8"),
    "fourth": ("#7a4191", "#d6a3ec"),
    "attack": ("#191b1f", "#eceef1"),
    "other": ("#868c96", "#727985"),
}
#: What text may be written in.
TEXT = ("ink", "muted", "good", "fair", "weak", "bad", "void", "none", "lead", "second", "third", "fourth")


def _variables(place: int) -> str:
    return "".join(f"--{name}:{values[place]};" for name, values in COLOURS.items())


_STATES = ("good", "fair", "weak", "bad", "void", "none", "lead", "second", "third", "fourth", "attack", "other")

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--page);color:var(--ink);overflow-wrap:anywhere;
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main,header,footer,nav{max-width:1080px;margin:0 auto;padding:0 20px}
header{padding-top:44px;display:grid;grid-template-columns:1fr auto;gap:12px}
h1{font-size:clamp(1.7rem,4.5vw,2.5rem);line-height:1.15;letter-spacing:-.02em;margin:0 0 6px;font-weight:680}
h2{font-size:1.45rem;letter-spacing:-.012em;margin:0 0 4px;font-weight:650}
h3{font-size:1.05rem;margin:0 0 8px;font-weight:620;line-height:1.35}
h4{font-size:.8rem;margin:0 0 4px;font-weight:620}
p{margin:0 0 8px}ul,ol{margin:0 0 8px;padding-left:20px}li{margin:2px 0}
section{margin:56px 0}
section>.lede{color:var(--muted);max-width:68ch;margin-bottom:20px}
.muted,figcaption{color:var(--muted)}.small{font-size:.86rem;line-height:1.45}
.alarm{color:var(--bad)}
code{font:.82em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
a{color:var(--fair)}a:focus-visible,summary:focus-visible,button:focus-visible,.scroll:focus-visible{
outline:2px solid var(--fair);outline-offset:2px;border-radius:4px}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:18px 0 0;font-size:.92rem}
button{font:inherit;font-size:.86rem;color:var(--muted);background:none;border:1px solid var(--line);
border-radius:999px;padding:5px 14px;cursor:pointer;height:min-content}
button[hidden]{display:none}
.card,figure{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 22px;margin:0}
.figures,.cards,.verdicts{display:grid;gap:18px;align-items:start;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
.cards{grid-template-columns:repeat(auto-fill,minmax(min(100%,310px),1fr));gap:14px}
.cards .card{padding:15px 17px}.figures+.cards{margin-top:18px}
.verdict{border-top:5px solid var(--none)}.verdict h3{font-size:1.2rem;margin-bottom:12px}
.eyebrow{font-size:.8rem;color:var(--muted);margin:0}
.headline{margin-bottom:16px}.figure{font-size:clamp(1.55rem,4.4vw,2.05rem);font-weight:660;letter-spacing:-.02em;
line-height:1.2;margin-right:6px}.under{display:block;color:var(--muted);font-size:.9rem;margin-top:4px}
dl{margin:0}.fact{display:grid;grid-template-columns:7.4rem 1fr;gap:4px 12px;padding:10px 0;
border-top:1px solid var(--line)}
dt{font-weight:600;font-size:.92rem;white-space:nowrap}
dd{margin:0;font-size:.95rem}.fact dt:before{content:"";display:inline-block;
width:9px;height:9px;border-radius:50%;margin-right:8px;background:var(--none)}
.unchecked{border-top:1px solid var(--line);padding-top:10px;font-size:.92rem;color:var(--muted)}
.unchecked h4{color:var(--ink);font-size:.92rem}
.pill{display:inline-block;font-size:.76rem;font-weight:620;line-height:1.5;padding:1px 9px;border-radius:999px;
border:1px solid currentColor;white-space:nowrap;vertical-align:.12em;margin-right:4px;color:var(--none)}
.legend{list-style:none;padding:0;display:grid;gap:4px 28px;font-size:.88rem;color:var(--muted);margin-top:18px;
grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))}
ul.plain{list-style:none;padding:0}.guarantee{border-left:4px solid var(--none)}
.amount{font-size:1.2rem;font-weight:620;letter-spacing:-.01em;margin-bottom:4px}.step{margin-bottom:2px}
.chain{list-style:none;padding:0;margin:0}.chain li{display:grid;grid-template-columns:auto 1fr;gap:12px;margin:0}
.chain .body{padding:9px 0 20px;min-width:0}.chain p{margin-bottom:2px}
.rail{position:relative;min-height:44px}.rail svg{position:absolute;top:0;left:0;width:100%}
.rail .lines{top:22px;height:calc(100% - 22px)}.rail path{fill:none;stroke:var(--other);stroke-width:2;
vector-effect:non-scaling-stroke}
.knot{height:44px}.knot circle{fill:var(--card);stroke:var(--lead);stroke-width:3}.knot .bad{stroke:var(--bad)}
.chips{font-size:.84rem;line-height:1.9}.chip{border:1px solid var(--line);background:var(--card);border-radius:6px;
padding:2px 8px;margin-right:6px;display:inline-block;line-height:1.4;max-width:100%}.chip b{font-weight:600}
.chip code{color:var(--muted)}
figure{break-inside:avoid}figcaption{font-size:.86rem;line-height:1.5;margin-top:8px}figcaption p{margin:0 0 4px}
.plot{display:block;width:100%;max-width:520px;height:auto;margin:0 auto;overflow:visible}
.plot text{font-size:12px;fill:var(--ink)}.plot .tick,.plot .name{fill:var(--muted);font-size:11.5px}
.mid{text-anchor:middle}.end{text-anchor:end}.start{text-anchor:start}.plot .strong{font-weight:620}
.plot .label,.plot .marked{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
.plot .marked{fill:var(--ink)}
.grid{stroke:var(--line);stroke-width:1}.axis,.track{stroke:var(--line);stroke-width:1}
.axis{stroke:var(--other)}.mark{stroke:var(--ink);stroke-width:1.4;stroke-dasharray:5 3}
.curve{fill:none;stroke:var(--other);stroke-width:2.2;stroke-linejoin:round}.curve.other{stroke-width:1.2}
.curve.blind{stroke:var(--other);stroke-width:1.4;stroke-dasharray:2 3}
.curve.attack{stroke-width:1.4}
.chance{fill:none;stroke:var(--muted);stroke-width:1.2;stroke-dasharray:5 4}
.band{fill:var(--lead);opacity:.16}.excluded{fill:var(--none);opacity:.1}
.range{stroke:var(--none);stroke-width:3;stroke-linecap:round;opacity:.65}.link{stroke:var(--none);stroke-width:1.5}
.dot{fill:var(--ink)}.hollow{fill:var(--card);stroke:var(--muted);stroke-width:2}
.calm.dot{fill:var(--muted)}.calm.range{stroke:var(--muted)}.ink.dot{fill:var(--ink)}
.bar{fill:var(--lead)}.bar.other{fill:var(--other)}
[data-tip]:hover{opacity:1}.tip{position:fixed;z-index:9;pointer-events:none;background:var(--ink);color:var(--page);
font-size:.84rem;padding:4px 10px;border-radius:6px;max-width:280px;left:0;top:0}
.tip[hidden]{display:none}
details{margin-top:8px}summary{cursor:pointer;font-size:.88rem;color:var(--fair);padding:3px 0}
details[open]>summary{margin-bottom:6px}.appendix>details{border-top:1px solid var(--line);padding:6px 0}
.scroll{overflow-x:auto;margin:6px 0 12px}table{border-collapse:collapse;font-size:.86rem;min-width:100%;
font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--muted);padding-bottom:4px}th,td{text-align:left;vertical-align:top;
padding:6px 14px 6px 0;border-bottom:1px solid var(--line);font-weight:400;min-width:5.5em;max-width:34em}
thead th{font-weight:620;color:var(--muted);white-space:nowrap}
footer{color:var(--muted);font-size:.86rem;padding-top:20px;padding-bottom:48px}
@media (max-width:560px){main,header,footer,nav{padding-left:14px;padding-right:14px}header{padding-top:26px}
.card,figure{padding:16px 14px}.fact{grid-template-columns:1fr}section{margin:40px 0}.plot text{font-size:14px}
.plot .tick,.plot .name{font-size:13.5px}}
@media print{:root{color-scheme:light}body{font-size:10.5pt;background:none}button,nav,.tip{display:none!important}
section{margin:20px 0}.card,figure,.chain li{break-inside:avoid}.card,figure{border-color:#bbb}
.scroll{overflow:visible}main,header,footer{max-width:none;padding:0}h2,h3{break-after:avoid}}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
"""


def _state_rules() -> str:
    rules = []
    for state in _STATES:
        rules.append(
            f".pill.{state},.label.{state}{{color:var(--{state});fill:var(--{state})}}"
            f".verdict.{state}{{border-top-color:var(--{state})}}.guarantee.{state}{{border-left-color:var(--{state})}}"
            f".fact.{state} dt:before{{background:var(--{state})}}.curve.{state}{{stroke:var(--{state})}}"
            f".dot.{state}{{fill:var(--{state})}}.range.{state},.link.{state},.hollow.{state}{{stroke:var(--{state})}}"
            f".excluded.{state}{{fill:var(--{state})}}"
        )
    rules += [f".plot text.label.{state}{{fill:var(--{state})}}" for state in _STATES]
    rules += [f".lanes-{count}{{width:{18 * count}px}}" for count in range(1, 9)]
    return "".join(rules)


def _style() -> str:
    light, dark = _variables(0), _variables(1)
    return (
        f":root{{color-scheme:light;{light}}}"
        f'@media screen and (prefers-color-scheme:dark){{:root:not([data-theme="light"]){{color-scheme:dark;{dark}}}}}'
        f'@media screen{{:root[data-theme="dark"]{{color-scheme:dark;{dark}}}}}'
        f"{_RULES.replace(chr(10), '')}{_state_rules()}"
    )


STYLE = _style()

SCRIPT = """
(function(){
var root=document.documentElement,button=document.getElementById("theme");
var dark=window.matchMedia("(prefers-color-scheme: dark)").matches;
function name(){button.textContent=dark?"Light":"Dark";}
button.hidden=false;name();
button.addEventListener("click",function(){dark=!dark;root.setAttribute("data-theme",dark?"dark":"light");name();});
var tip=document.createElement("div");tip.className="tip";tip.hidden=true;document.body.appendChild(tip);
tip.setAttribute("aria-hidden","true");
function show(event){
var at=event.target.closest("[data-tip]");
if(!at){tip.hidden=true;return;}
tip.textContent=at.getAttribute("data-tip");tip.hidden=false;
var x=event.clientX+14,y=event.clientY+14;
tip.style.left=Math.max(0,Math.min(x,root.clientWidth-tip.offsetWidth-6))+"px";
tip.style.top=Math.max(0,Math.min(y,window.innerHeight-tip.offsetHeight-6))+"px";
}
document.addEventListener("pointermove",show);document.addEventListener("pointerdown",show);
window.addEventListener("scroll",function(){tip.hidden=true;},{passive:true});
var closed=[];
window.addEventListener("beforeprint",function(){
closed=[].slice.call(document.querySelectorAll("figure details:not([open])"));
closed.forEach(function(each){each.open=true;});});
window.addEventListener("afterprint",function(){closed.forEach(function(each){each.open=false;});});
})();
"""


def policy() -> str:
    """The content security policy: this style, this script, and nothing else from anywhere."""
    return (
        f"default-src 'none'; style-src 'sha256-{_hash(STYLE)}'; script-src 'sha256-{_hash(SCRIPT)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
