// The address follows the place. A message that it led to is left out of it: where the chat is reloaded, it has gone on.
const follow = (session) => {
  const url = new URL(window.location.href);
  const isThere = window.chatcache.addressed() === session;
  for (const found of ["message", "word"]) url.searchParams.delete(found);
  if (session) url.searchParams.set("session", session);
  else url.searchParams.delete("session");
  if (url.href !== window.location.href) window.history[isThere ? "replaceState" : "pushState"](null, "", url);
};
// Every move tells how often the person had asked to go elsewhere when it was asked for, and counts one further from where
// the tab was then. One that falls behind was overtaken by what the person asked for later or saw earlier: nothing comes
// of it, neither on the page nor in the address, which the buttons Back and Forward have changed already.
let place = JSON.parse(props.value);
const isOvertaken = ({ asked, visit, session }) =>
  asked < place.asked || visit < place.visit || (visit === place.visit && session !== place.session);
const hold = (held) => {
  place = held;
  props.value = JSON.stringify(place);
};
window.addEventListener("chatcache-asked", () => hold({ ...place, asked: place.asked + 1 }));
let arrival = "";
watch("value", () => {
  const moved = JSON.parse(props.value);
  if (JSON.stringify(moved) === JSON.stringify(place)) return;
  if (isOvertaken(moved)) return hold(place);
  place = moved;
  const { session, visit, temporary, message } = place;
  window.dispatchEvent(new CustomEvent("chatcache-place", { detail: { session: session ?? "", temporary, message } }));
  follow(session ?? "");
  if (arrival === `${visit} ${session}`) return;
  arrival = `${visit} ${session}`;
  trigger("arrived");
});

// A follower may have failed: look again now and then, at once while nothing is shown yet, and when the tab is looked at.
// The first one waits until the tab has arrived: see `follow`. A tab that nobody looks at gives its connection back after
// a while, for a browser has six for all its tabs together.
const lookAgain = () => {
  if (!document.hidden) trigger("resumed");
};
let leaving = 0;
setTimeout(() => trigger("resumed"));
setInterval(lookAgain, 15000);
setInterval(() => {
  if (window.chatcache.box()?.disabled) lookAgain();
}, 2000);
window.addEventListener("chatcache-online", lookAgain);
document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (document.hidden) leaving = setTimeout(() => trigger("left"), 30000);
  else lookAgain();
});
