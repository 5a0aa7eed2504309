// The address follows the place, but not to a chat that the person has travelled past meanwhile, back or forward. A message
// that it led to is left out of it: where the chat is reloaded, it has gone on.
const travels = [];
window.addEventListener("popstate", () => travels.push(window.chatcache.addressed()));
const follow = (session) => {
  const reached = travels.indexOf(session);
  travels.splice(0, reached < 0 ? travels.length : reached + 1);
  if (travels.length) return;
  const url = new URL(window.location.href);
  const isThere = window.chatcache.addressed() === session;
  for (const found of ["message", "word"]) url.searchParams.delete(found);
  if (session) url.searchParams.set("session", session);
  else url.searchParams.delete("session");
  if (url.href !== window.location.href) window.history[isThere ? "replaceState" : "pushState"](null, "", url);
};
// Every move counts one further from where the tab was when it was asked for. One that does not was overtaken by another,
// which the person asked for later or saw earlier: nothing comes of it.
let place = JSON.parse(props.value);
const isOvertaken = (moved) => moved.visit < place.visit || (moved.visit === place.visit && moved.session !== place.session);
let arrival = "";
watch("value", () => {
  const moved = JSON.parse(props.value);
  if (isOvertaken(moved)) props.value = JSON.stringify(place);
  else place = moved;
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
