package mdns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/notify"
)

// Config is what a [Responder] needs.
type Config struct {
	// Interface selects interfaces by name; nil means [DefaultInterface]. In any case they have to
	// be up, able to multicast and not the loopback.
	Interface func(name string) bool
	Log       *slog.Logger
}

// A Responder publishes services on the LANs of this host, and finds those of others.
type Responder struct {
	cfg Config
	// changed is notified when the found clusters change, and wake, for Run, when the services do.
	changed, wake notify.Channel

	mu       sync.Mutex
	services []discovery.Service
	found    map[string][]discovery.Found
	stats    map[string]Stats
	// conflicts is by interface, too.
	conflicts map[string][]Conflict
}

const (
	// listEvery is how often interfaces are listed without a change,
	listEvery = 30 * time.Second
	// listOften how often if the system does not report changes,
	listOften = 3 * time.Second
	// listAfter is the shortest pause between two lists: containers that start and stop cause many
	// changes.
	listAfter = time.Second
	// shareEvery is the shortest pause between two updates of the found clusters, which a flood
	// would cause for each packet.
	shareEvery = 100 * time.Millisecond
	// readPause is the pause after a read error.
	readPause = time.Second
)

// New returns a responder that does nothing before Run.
func New(cfg Config) *Responder {
	if cfg.Interface == nil {
		cfg.Interface = DefaultInterface
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Responder{
		cfg: cfg, changed: notify.New(), wake: notify.New(),
		found: map[string][]discovery.Found{}, stats: map[string]Stats{}, conflicts: map[string][]Conflict{},
	}
}

// Publish replaces the published services, now or when Run begins. If one of them is invalid, it
// fails and changes nothing. A name that is taken is changed: see [discovery.Rename].
func (r *Responder) Publish(services []discovery.Service) error {
	if len(services) > MaxServices {
		return fmt.Errorf("%d services; the limit is %d", len(services), MaxServices)
	}
	services = slices.Clone(services)
	for i, s := range services {
		if err := s.Check(); err != nil {
			return fmt.Errorf("service %q: %w", s.Instance, err)
		}
		services[i].Addresses = slices.Clone(s.Addresses)
	}
	r.mu.Lock()
	r.services = services
	r.mu.Unlock()
	r.wake.Notify()
	return nil
}

// Found returns the clusters that others publish, sorted by interface. An instance that two
// interfaces reach is listed twice.
func (r *Responder) Found() []discovery.Found {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []discovery.Found{}
	for _, where := range slices.Sorted(maps.Keys(r.found)) {
		for _, f := range r.found[where] {
			f.Endpoints, f.From = slices.Clone(f.Endpoints), slices.Clone(f.From)
			out = append(out, f)
		}
	}
	return out
}

// Changed receives after the results of Found changed in more than times. Several changes may be
// reported as one.
func (r *Responder) Changed() <-chan struct{} { return r.changed }

// Stats returns the counts of dropped packets and records, by interface.
func (r *Responder) Stats() map[string]Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.stats)
}

// Conflicts returns the published names, or cluster IDs, that others announce, sorted by interface.
func (r *Responder) Conflicts() []Conflict {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Conflict
	for _, where := range slices.Sorted(maps.Keys(r.conflicts)) {
		out = append(out, r.conflicts[where]...)
	}
	return out
}

// A run is the state of a running responder.
type run struct {
	*Responder
	sockets []*socket
	links   map[int]*served
	sent    *echoes
	watched bool
	// shared is when the found clusters were last updated.
	shared time.Time
}

// served is an interface in use.
type served struct {
	iface
	*link
	// joined are the families in which it sends and receives.
	joined family
	// failed are those for which an error was logged.
	failed family
}

// Run publishes and browses until ctx ends, and then sends goodbyes. It fails if it can open a
// socket in neither family. Interfaces may come and go.
func (r *Responder) Run(ctx context.Context) error {
	v := &run{Responder: r, links: map[int]*served{}, sent: newEchoes()}
	var errs []error
	for _, f := range []family{ipv4Family, ipv6Family} {
		s, err := listen(ctx, f)
		if err != nil {
			errs = append(errs, err)
			r.cfg.Log.Warn("no multicast DNS in one family", "error", err)
			continue
		}
		v.sockets = append(v.sockets, s)
	}
	if len(v.sockets) == 0 {
		return fmt.Errorf("open UDP port %d: %w", port, errors.Join(errs...))
	}
	var tasks sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	in := make(chan datagram, 64)
	for _, s := range v.sockets {
		tasks.Go(func() { v.readAll(ctx, s, in) })
	}
	changes := notify.New()
	lost := make(chan error, 1)
	if f, err := openWatch(); err == nil {
		v.watched = true
		tasks.Go(func() { lost <- watch(f, changes) })
		context.AfterFunc(ctx, func() { _ = f.Close() })
	}
	v.loop(ctx, in, changes, lost)
	v.end()
	cancel()
	for _, s := range v.sockets {
		_ = s.conn.Close()
	}
	tasks.Wait()
	return nil
}

// readAll reads until the socket closes.
func (v *run) readAll(ctx context.Context, s *socket, in chan<- datagram) {
	// One byte more than the limit, to recognise packets that are too large.
	b := make([]byte, maxPacket+1)
	for ctx.Err() == nil {
		d, err := s.read(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			v.cfg.Log.Debug("read multicast DNS", "error", err)
			notify.Pause(ctx, readPause)
			continue
		}
		d.data = slices.Clone(d.data)
		select {
		case in <- d:
		case <-ctx.Done():
		}
	}
}

// loop is the only goroutine that uses links.
func (v *run) loop(ctx context.Context, in <-chan datagram, changes <-chan struct{}, lost <-chan error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var listed time.Time
	list := time.Now()
	for {
		now := time.Now()
		if !list.After(now) {
			v.updateLinks(now)
			listed, list = now, now.Add(listEvery)
			if !v.watched {
				list = now.Add(listOften)
			}
		}
		next := list
		for _, s := range v.links {
			if t := s.next(); !t.IsZero() && !t.After(now) {
				s.tick(now)
			}
			v.flush(s)
			if t := s.next(); !t.IsZero() {
				next = earlier(next, t)
			}
		}
		next = earlier(next, v.share(now))
		timer.Reset(max(next.Sub(now), time.Millisecond))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-changes:
			list = earlier(list, later(time.Now(), listed.Add(listAfter)))
		case err := <-lost:
			if lost = nil; ctx.Err() == nil {
				v.cfg.Log.Debug("changes of interfaces are not reported", "error", err)
				v.watched = false
			}
		case <-v.wake:
			for _, s := range v.links {
				s.publish(time.Now(), v.wanted())
			}
		case d := <-in:
			if s := v.links[d.index]; s != nil && s.onLink(d.from.Addr(), d.multicast) {
				s.receive(time.Now(), d.data, d.from, d.multicast)
			}
		}
	}
}

func (v *run) wanted() []discovery.Service {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.services
}

// updateLinks adds and removes links, so that they match the interfaces.
func (v *run) updateLinks(now time.Time) {
	list, err := listInterfaces(v.cfg.Interface)
	if err != nil {
		v.cfg.Log.Warn("list network interfaces", "error", err)
		return
	}
	for index, s := range v.links {
		if !slices.ContainsFunc(list, func(f iface) bool { return f.index == index && f.name == s.iface.name }) {
			v.cfg.Log.Info("stopped multicast DNS", "interface", s.iface.name)
			v.leave(s)
			delete(v.links, index)
			v.forget(s.iface.name)
		}
	}
	shared := portShared(len(v.sockets))
	for _, f := range list {
		s := v.links[f.index]
		if s == nil {
			s = &served{link: newLink(f.name, 0, f.room(), rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), v.sent)}
			v.links[f.index] = s
			v.cfg.Log.Info("started multicast DNS", "interface", f.name)
		}
		before := s.joined
		s.iface, s.shared = f, shared
		v.join(s)
		s.families, s.payload = s.joined, f.room()
		s.setAddresses(now, f.published())
		switch {
		case before == 0:
			s.publish(now, v.wanted())
			s.browse(now, []name{serviceName, automatic})
		case s.joined&^before != 0:
			s.restart(now)
		}
	}
}

// join joins the groups of the families that an interface has, and leaves others. If one family
// fails, the other goes on, and the failed one is retried.
func (v *run) join(s *served) {
	for _, sock := range v.sockets {
		f := sock.family
		switch {
		case s.available()&f == 0:
			if s.joined&f != 0 {
				_ = sock.leave(s.index)
			}
			s.joined &^= f
		case s.joined&f == 0:
			if err := sock.join(s.index); err != nil {
				if s.failed&f == 0 {
					v.cfg.Log.Warn("join the group of multicast DNS", "interface", s.iface.name, "group", groupOf(f), "error", err)
				}
				s.failed |= f
				continue
			}
			s.joined |= f
			s.failed &^= f
		}
	}
}

func (v *run) leave(s *served) {
	for _, sock := range v.sockets {
		if s.joined&sock.family != 0 {
			// The kernel may have left it when the interface was removed.
			_ = sock.leave(s.index)
		}
	}
}

// flush sends the packets of a link. A send error is treated like packet loss: the protocol repeats
// what matters.
func (v *run) flush(s *served) {
	for _, p := range s.packets() {
		for _, sock := range v.sockets {
			if s.joined&sock.family == 0 || p.to.IsValid() && familyOf(p.to.Addr()) != sock.family {
				continue
			}
			if err := sock.send(s.index, p.to, p.data); err != nil {
				if s.failed&sock.family == 0 {
					v.cfg.Log.Warn("send multicast DNS", "interface", s.iface.name, "group", groupOf(sock.family), "error", err)
				}
				s.failed |= sock.family
			} else {
				s.failed &^= sock.family
			}
		}
	}
	for _, n := range s.renames {
		v.cfg.Log.Info("the name is taken", "interface", s.iface.name, "name", n.from, "newName", n.to)
	}
	s.renames = nil
}

// share updates the results of Found, and returns when it has to be called again at the latest.
func (v *run) share(now time.Time) time.Time {
	again, dirty := now.Add(listEvery), false
	for _, s := range v.links {
		dirty = dirty || s.dirty
	}
	if !dirty {
		return again
	}
	if at := v.shared.Add(shareEvery); at.After(now) {
		return at
	}
	v.shared = now
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := false
	for _, s := range v.links {
		if !s.dirty {
			continue
		}
		found, imitations := s.collect()
		s.dirty = false
		changed = changed || !sameFound(found, v.found[s.iface.name])
		v.found[s.iface.name], v.stats[s.iface.name], v.conflicts[s.iface.name] = found, s.stats, s.contests(imitations)
	}
	if changed {
		v.changed.Notify()
	}
	return again
}

func (v *run) forget(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed := len(v.found[name]) > 0
	delete(v.found, name)
	delete(v.stats, name)
	delete(v.conflicts, name)
	if changed {
		v.changed.Notify()
	}
}

// end sends goodbyes, and clears the results of Found.
func (v *run) end() {
	now := time.Now()
	for _, s := range v.links {
		s.publish(now, nil)
		v.flush(s)
		v.forget(s.iface.name)
	}
}
