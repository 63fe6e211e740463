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
	// Interface says whether an interface is used; nil is [DefaultInterface]. Whatever it
	// says, one has to be up, able to multicast and not the loopback.
	Interface func(name string) bool
	Log       *slog.Logger
}

// A Responder publishes services on the LANs of this host, and finds those of others.
type Responder struct {
	cfg Config
	// changed is of what was found, and wake tells Run that services changed.
	changed, wake notify.Channel

	mu       sync.Mutex
	services []discovery.Service
	found    map[string][]discovery.Found
	stats    map[string]Stats
	// conflicts is by interface, too.
	conflicts map[string][]Conflict
}

const (
	// lookEvery is how often interfaces are looked at without a cause,
	lookEvery = 30 * time.Second
	// lookOften where the system does not tell of changes,
	lookOften = 3 * time.Second
	// lookAfter is the least time between two looks: containers that come and go make
	// many changes.
	lookAfter = time.Second
	// shareEvery is the least time between two lists of what was found, which a flood would
	// have made for each packet.
	shareEvery = 100 * time.Millisecond
	// readPause is how long reading waits after an error.
	readPause = time.Second
)

// New returns a responder that does nothing yet.
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

// Publish replaces what is published, now or when Run begins. It fails for a service
// that cannot be, and changes nothing then. A name that another has is changed:
// [discovery.Rename].
func (r *Responder) Publish(services []discovery.Service) error {
	if len(services) > MaxServices {
		return fmt.Errorf("%d services, more than %d", len(services), MaxServices)
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

// Found returns what others publish, of each interface in the order of their names. An
// instance that two interfaces lead to is in it twice.
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

// Changed receives after what Found returns changed in more than times. Several
// changes may be one.
func (r *Responder) Changed() <-chan struct{} { return r.changed }

// Stats returns what was not taken, by interface.
func (r *Responder) Stats() map[string]Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.stats)
}

// Conflicts returns which names of what is published, or cluster IDs, others announce, of
// each interface in the order of their names.
func (r *Responder) Conflicts() []Conflict {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Conflict
	for _, where := range slices.Sorted(maps.Keys(r.conflicts)) {
		out = append(out, r.conflicts[where]...)
	}
	return out
}

// A run is what a running responder has.
type run struct {
	*Responder
	sockets []*socket
	links   map[int]*served
	sent    *echoes
	watched bool
	// shared is when it was said last what was found.
	shared time.Time
}

// served is an interface in use.
type served struct {
	iface
	*link
	// joined are the families in which packets come and go.
	joined family
	// failed are those for which an error was logged.
	failed family
}

// Run publishes and looks for others until ctx ends, and says goodbye then. It fails if
// there is no socket in any family. Interfaces may come and go.
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
	// One byte more than is read: a packet that is cut is one that is too large.
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

// loop is the only one that touches links.
func (v *run) loop(ctx context.Context, in <-chan datagram, changes <-chan struct{}, lost <-chan error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var looked time.Time
	look := time.Now()
	for {
		now := time.Now()
		if !look.After(now) {
			v.look(now)
			looked, look = now, now.Add(lookEvery)
			if !v.watched {
				look = now.Add(lookOften)
			}
		}
		next := look
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
			look = earlier(look, later(time.Now(), looked.Add(lookAfter)))
		case err := <-lost:
			if lost = nil; ctx.Err() == nil {
				v.cfg.Log.Debug("changes of interfaces are not told", "error", err)
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

// look makes the links those of the interfaces that there are.
func (v *run) look(now time.Time) {
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

// join joins the groups of the families that an interface has, and leaves others. A
// family that cannot be joined does not stop the other, and is tried again.
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
			// The kernel may have done it with the interface.
			_ = sock.leave(s.index)
		}
	}
}

// flush sends what a link wants to be sent. What does not go out is lost, as on the
// way: the protocol repeats what matters.
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
		v.cfg.Log.Info("another has the name", "interface", s.iface.name, "name", n.from, "newName", n.to)
	}
	s.renames = nil
}

// share gives others what was found, and returns when to do so again at the latest.
func (v *run) share(now time.Time) time.Time {
	again, dirty := now.Add(lookEvery), false
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
		found, imitations := s.look()
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

// end says goodbye, and that nothing is known any more.
func (v *run) end() {
	now := time.Now()
	for _, s := range v.links {
		s.publish(now, nil)
		v.flush(s)
		v.forget(s.iface.name)
	}
}
