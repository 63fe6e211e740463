package datagrams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/internal/accept"
)

// HubConfig configures a Hub. All of it is required.
type HubConfig struct {
	// Carries reports whether datagrams are carried for a peer. It must not block.
	Carries func(peer string) bool
	// Keys returns the keys of a peer's links, each of which is accepted; none if the peer has none.
	Keys func(ctx context.Context, peer string) []Key
	// IsGateway reports whether a gateway of this cluster has a WireGuard public key.
	IsGateway func(ctx context.Context, publicKey [32]byte) bool
	// Call sends batches to a peer's agent until next returns an error, io.EOF at the end.
	Call func(ctx context.Context, peer string, next func(context.Context) ([]byte, error)) error
	// PeerRate is how many bytes a second are carried for a peer, each way. AllRate is that of all
	// peers together, which share it evenly.
	PeerRate, AllRate int
	Log               *slog.Logger
}

// Hub is the agent's part: between the links of gateways, and the calls of and to peers.
type Hub struct {
	cfg  HubConfig
	warn rate.Sometimes

	// unproven counts the connections that have not proven themselves, by address.
	unproven *accept.Counts[netip.Addr]

	mu    sync.Mutex
	links map[linkID]*link
	peers map[string]*peer
	// calls runs calls to peers, while the hub serves.
	calls func(func(context.Context))
}

// linkID identifies the link of a gateway for a peer.
type linkID struct {
	peer    string
	gateway Tag
}

// link is a gateway's link.
type link struct {
	conn  net.Conn
	queue *queue
}

// peer is the state of a peer for which datagrams are carried.
type peer struct {
	out *queue
	// calling says that a call to its agent is in progress. After one that failed the next begins not
	// before notBefore, which is pause later.
	calling   bool
	notBefore time.Time
	pause     time.Duration
	// sent and received bound the rate of each way; last is when they were last used.
	sent, received *rate.Limiter
	handshakes     *rate.Limiter
	last           time.Time
	stats          counters
}

// Stats counts the datagrams that were carried for a peer, or lost, since the agent began.
type Stats struct {
	// Sent are datagrams that were sent to the peer, Received those that a gateway got from it, with
	// their bytes.
	Sent, SentBytes, Received, ReceivedBytes uint64
	// Late are datagrams that were lost because there was no room or they had waited too
	// long; Malformed those that WireGuard cannot have written; Handshakes beginnings of handshakes
	// beyond the limit; Homeless those for a gateway without a link.
	Late, Malformed, Handshakes, Homeless uint64
}

type counters struct {
	sent, sentBytes, received, receivedBytes, malformed, handshakes, homeless, lateLinks atomic.Uint64
}

// ErrRefused says that this cluster does not carry datagrams for a peer.
var ErrRefused = errors.New("datagrams: this cluster does not carry datagrams for this peer")

// NewHub returns a Hub that serves nothing yet.
func NewHub(cfg HubConfig) (*Hub, error) {
	if cfg.Carries == nil || cfg.Keys == nil || cfg.IsGateway == nil || cfg.Call == nil || cfg.Log == nil {
		return nil, errors.New("datagrams: Carries, Keys, IsGateway, Call and Log are required")
	}
	if cfg.PeerRate <= 0 || cfg.AllRate <= 0 {
		return nil, errors.New("datagrams: rates have to be positive")
	}
	return &Hub{cfg: cfg, warn: rate.Sometimes{Interval: time.Minute}, unproven: accept.NewCounts[netip.Addr](maxUnproven, maxUnprovenOfOne), links: map[linkID]*link{}, peers: map[string]*peer{}}, nil
}

// Serve serves gateways until ctx ends, or listening fails.
func (h *Hub) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	h.mu.Lock()
	h.calls = func(call func(context.Context)) { tasks.Go(func() { call(ctx) }) }
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.calls = nil
		h.mu.Unlock()
	}()
	err := accept.Each(ctx, listener, func(err error) {
		h.warn.Do(func() { h.cfg.Log.Warn("cannot accept a gateway's link", "err", err) })
	}, func(conn net.Conn) {
		from := accept.From(conn)
		proven, ok := h.enter(from)
		if !ok {
			_ = conn.Close()
			return
		}
		tasks.Go(func() { h.serve(ctx, conn, from, proven) })
	})
	if err != nil {
		return fmt.Errorf("serve gateways on %s: %w", listener.Addr(), err)
	}
	return nil
}

// enter counts a connection that has not proven itself, until proven is called.
func (h *Hub) enter(from netip.Addr) (proven func(), ok bool) {
	h.mu.Lock()
	full := len(h.links) >= maxLinks
	h.mu.Unlock()
	if full || !from.IsValid() {
		return nil, false
	}
	return h.unproven.Enter(from)
}

// serve serves one link.
func (h *Hub) serve(ctx context.Context, conn net.Conn, from netip.Addr, proven func()) {
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	r, err := h.prove(ctx, conn)
	proven()
	if err != nil {
		h.warn.Do(func() { h.cfg.Log.Warn("a gateway's link is refused", "from", from, "err", err) })
		return
	}
	own, l := tagOf(r.gateway), &link{conn: conn, queue: newQueue()}
	h.add(linkID{r.peer, own}, l)
	defer h.remove(linkID{r.peer, own}, l)
	h.cfg.Log.Info("carrying datagrams", "peer", r.peer, "gateway", fmt.Sprintf("%x", own))
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	writing.Go(func() {
		_ = writeLink(ctx, conn, l.queue, func(i item) Tag { return i.from })
		_ = conn.Close()
	})
	err = readLink(conn, func(to Tag, datagram []byte) { h.send(r.peer, own, to, datagram) })
	h.cfg.Log.Info("a gateway's link ended", "peer", r.peer, "gateway", fmt.Sprintf("%x", own), "err", err)
}

// add registers the link of a gateway. It closes an older one, which the gateway no longer uses.
func (h *Hub) add(id linkID, l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.links[id]; old != nil {
		_ = old.conn.Close()
	}
	h.links[id] = l
}

func (h *Hub) remove(id linkID, l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.links[id] == l {
		delete(h.links, id)
	}
	if p := h.peers[id.peer]; p != nil {
		p.stats.lateLinks.Add(l.queue.dropped())
	}
}

func (h *Hub) prove(ctx context.Context, conn net.Conn) (request, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	if err := conn.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return request{}, err
	}
	r, err := respond(conn,
		func(peer string) []Key { return h.cfg.Keys(ctx, peer) },
		func(publicKey [32]byte) bool { return h.cfg.IsGateway(ctx, publicKey) })
	if err != nil {
		return request{}, err
	}
	return r, conn.SetDeadline(time.Time{})
}

// of returns the state of a peer, and notes that it is used. The caller has the lock.
func (h *Hub) of(id string, now time.Time) *peer {
	p := h.peers[id]
	if p == nil {
		p = &peer{
			out: newQueue(), sent: rate.NewLimiter(rate.Limit(h.cfg.PeerRate), 2*MaxBatch), received: rate.NewLimiter(rate.Limit(h.cfg.PeerRate), 2*MaxBatch),
			handshakes: rate.NewLimiter(handshakeRate, handshakeBurst),
		}
		h.peers[id] = p
	}
	if now.Sub(p.last) > shareFor/2 {
		p.last = now
		h.share(now)
	}
	return p
}

// share divides the rate for all peers among those in use. The caller has the lock.
func (h *Hub) share(now time.Time) {
	active := 0
	for _, p := range h.peers {
		if now.Sub(p.last) < shareFor {
			active++
		}
	}
	limit := rate.Limit(min(h.cfg.PeerRate, h.cfg.AllRate/max(active, 1)))
	for _, p := range h.peers {
		p.sent.SetLimitAt(now, limit)
		p.received.SetLimitAt(now, limit)
	}
}

// send queues a datagram of a gateway for a gateway of a peer.
func (h *Hub) send(id string, from, to Tag, datagram []byte) {
	now := time.Now()
	h.mu.Lock()
	p := h.of(id, now)
	call := h.calls
	start := !p.calling && call != nil && !now.Before(p.notBefore)
	if start {
		p.calling = true
	}
	h.mu.Unlock()
	if kindOf(datagram) == kindNone {
		p.stats.malformed.Add(1)
		return
	}
	p.out.push(now, from, to, datagram)
	if start {
		call(func(ctx context.Context) { h.call(ctx, id, p) })
	}
}

// call calls a peer's agent for as long as there are datagrams for it.
func (h *Hub) call(ctx context.Context, id string, p *peer) {
	began := time.Now()
	err := h.cfg.Call(ctx, id, func(ctx context.Context) ([]byte, error) { return h.next(ctx, p) })
	if err != nil && ctx.Err() == nil {
		h.warn.Do(func() { h.cfg.Log.Warn("datagrams do not reach a peer's agent", "peer", id, "err", err) })
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	p.calling = false
	switch {
	case err == nil:
		p.pause, p.notBefore = 0, time.Time{}
		return
	case now.Sub(began) > retryMax:
		p.pause = 0
	}
	p.pause = min(max(2*p.pause, retryMin), retryMax)
	p.notBefore = now.Add(p.pause)
}

// next returns the next batch for a peer.
func (h *Hub) next(ctx context.Context, p *peer) ([]byte, error) {
	idle := time.NewTimer(idleAfter)
	defer idle.Stop()
	for {
		if !p.out.wait(ctx, idle.C) {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, io.EOF
		}
		items := p.out.take(time.Now(), MaxBatch)
		if len(items) == 0 {
			continue
		}
		var batch []byte
		cost := 0
		for _, i := range items {
			batch = appendFrame(batch, i.from, i.to, i.data)
			cost += len(i.data) + datagramCost
			p.stats.sentBytes.Add(uint64(len(i.data)))
		}
		p.stats.sent.Add(uint64(len(items)))
		// Datagrams that wait meanwhile are dropped once they are too old.
		return batch, pace(ctx, p.sent, cost)
	}
}

// pace waits until a limiter allows a cost, in pieces of its burst.
func pace(ctx context.Context, l *rate.Limiter, cost int) error {
	for cost > 0 {
		n := min(cost, l.Burst())
		if err := l.WaitN(ctx, n); err != nil {
			return err
		}
		cost -= n
	}
	return nil
}

// Receive sends the datagrams of a peer's batch to the gateways that they are for. It blocks for as
// long as the peer's rate demands. An error means that the batch is malformed or refused.
func (h *Hub) Receive(ctx context.Context, id string, batch []byte) error {
	if !h.cfg.Carries(id) {
		return ErrRefused
	}
	if len(batch) > MaxBatch {
		return fmt.Errorf("datagrams: a batch of %d bytes, the limit is %d", len(batch), MaxBatch)
	}
	now, cost := time.Now(), 0
	h.mu.Lock()
	p := h.of(id, now)
	h.mu.Unlock()
	err := Frames(batch, func(from, to Tag, datagram []byte) {
		cost += len(datagram) + datagramCost
		h.receive(now, id, p, from, to, datagram)
	})
	if err != nil {
		return err
	}
	return pace(ctx, p.received, cost)
}

func (h *Hub) receive(now time.Time, id string, p *peer, from, to Tag, datagram []byte) {
	kind := kindOf(datagram)
	if kind == kindNone {
		p.stats.malformed.Add(1)
		return
	}
	if kind == kindInitiation && !p.handshakes.AllowN(now, 1) {
		p.stats.handshakes.Add(1)
		return
	}
	h.mu.Lock()
	l := h.links[linkID{id, to}]
	h.mu.Unlock()
	if l == nil {
		p.stats.homeless.Add(1)
		return
	}
	l.queue.push(now, from, to, datagram)
	p.stats.received.Add(1)
	p.stats.receivedBytes.Add(uint64(len(datagram)))
}

// Cut closes the links of peers that keep does not keep, and forgets them. keep must not call the hub.
func (h *Hub) Cut(keep func(peer string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, l := range h.links {
		if !keep(id.peer) {
			_ = l.conn.Close()
		}
	}
	maps.DeleteFunc(h.peers, func(id string, p *peer) bool { return !keep(id) && !p.calling })
}

// Stats returns the counts of each peer.
func (h *Hub) Stats() map[string]Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	late := map[string]uint64{}
	for id, l := range h.links {
		late[id.peer] += l.queue.dropped()
	}
	out := make(map[string]Stats, len(h.peers))
	for id, p := range h.peers {
		c := &p.stats
		out[id] = Stats{
			Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(), Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(),
			Late: c.lateLinks.Load() + late[id] + p.out.dropped(), Malformed: c.malformed.Load(), Handshakes: c.handshakes.Load(), Homeless: c.homeless.Load(),
		}
	}
	return out
}
