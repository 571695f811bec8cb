// Keeps every file of the page, so that it works without a network after the first visit. The export writes the two lines
// below; another version of the page has another name, and takes over when no tab shows the old one any more.

const VERSION = "";
const PAGE = [];

addEventListener("install", (event) => {
  event.waitUntil(caches.open(VERSION).then((cache) => cache.addAll(PAGE.map((path) => new Request(path, { cache: "reload" })))));
});

addEventListener("activate", (event) => {
  const old = (names) => names.filter((name) => name.startsWith("vitshap ") && name !== VERSION);
  event.waitUntil(caches.keys().then((names) => Promise.all(old(names).map((name) => caches.delete(name))))
    .then(() => clients.claim()));
});

// What is kept is answered from there; anything else is fetched, and kept.
async function answer(request) {
  const cache = await caches.open(VERSION);
  const page = request.mode === "navigate" && /\/(index\.html)?$/.test(new URL(request.url).pathname);
  const kept = await cache.match(page ? "./" : request, { ignoreSearch: true });
  if (kept) { return kept; }
  const found = await fetch(request, { cache: "no-cache" });
  if (found.ok) { await cache.put(request, found.clone()); }
  return found;
}

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && new URL(request.url).origin === location.origin) { event.respondWith(answer(request)); }
});
