package carry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/peering"
)

// CarrierConfig configures a Carrier. All fields are required.
type CarrierConfig struct {
	// Connected returns the peers with which there is a session that no third peer carries.
	Connected func() []peering.ClusterID
	// Session returns the number of the session with such a peer; 0 without a session.
	Session func(peer peering.ClusterID) uint64
	// Allowed reports whether this cluster carries for a peer now. It does not block.
	Allowed func(peer peering.ClusterID) bool
	// Open calls a peer to accept a connection. The stream ends with ctx.
	Open func(ctx context.Context, peer peering.ClusterID) (Stream, error)
	// PeerRate is how many bytes a second are carried for a peer, AllRate for all peers.
	PeerRate, AllRate int
	Log               *slog.Logger
}

// Carrier carries connections between peers.
type Carrier struct {
	cfg     CarrierConfig
	all     *rate.Limiter
	bytes   atomic.Int64
	refused [refusals]atomic.Int64

	mu       sync.Mutex
	carried  int
	accounts map[peering.ClusterID]*account
}

// account is the use of a Carrier by one peer.
type account struct {
	asks, bytes *rate.Limiter
	carried     int
}

// refusal is why a peer that asked was refused, for the metrics.
type refusal int

const (
	refusedRate refusal = iota
	refusedFull
	refusedUnknown
	refusedPolicy
	refusedPeer
	refusals
)

func (r refusal) String() string {
	return [refusals]string{"rate", "full", "unknown", "policy", "peer"}[r]
}

var (
	// errUnavailable is the one error about other peers. It does not show whether this cluster knows
	// them, is connected to them, or carries for them.
	errUnavailable = peering.Errorf(peering.ReasonPolicyRefused, "this cluster carries no connection between yours and that one now")
	errTooLarge    = fmt.Errorf("a message has more than %d bytes", MaxData)
	errIdle        = peering.Errorf(peering.ReasonPolicyRefused, "nothing passed the carried connection for %s", idleTimeout)
	errFull        = &peering.Error{Reason: peering.ReasonTooManyCalls, Message: "this cluster carries as many connections as it can", RetryAfter: time.Minute}
	errAsks        = &peering.Error{Reason: peering.ReasonRateLimited, Message: "your cluster asks for connections to be carried too often", RetryAfter: time.Second / askRate}
)

// NewCarrier returns a Carrier that carries nothing yet.
func NewCarrier(cfg CarrierConfig) (*Carrier, error) {
	if cfg.Connected == nil || cfg.Session == nil || cfg.Allowed == nil || cfg.Open == nil || cfg.PeerRate <= 0 || cfg.AllRate <= 0 || cfg.Log == nil {
		return nil, errors.New("carry: Connected, Session, Allowed, Open, PeerRate, AllRate and Log are required")
	}
	return &Carrier{cfg: cfg, all: limiter(cfg.AllRate), accounts: map[peering.ClusterID]*account{}}, nil
}

// limiter lets a number of bytes a second pass, and at least one message at once.
func limiter(bytes int) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(bytes), max(bytes/8, MaxData+messageCost))
}

// Carry carries a connection that a peer asks for until it ends. The error is for the peer.
func (c *Carrier) Carry(ctx context.Context, from peering.ClusterID, target Target, s Stream) error {
	a, err := c.ask(from)
	if err != nil {
		return err
	}
	to, why := c.find(from, target)
	if to == "" {
		return c.refuse(why, errUnavailable)
	}
	b, leave, err := c.enter(from, to)
	if err != nil {
		return err
	}
	defer leave()
	sessions := [2]uint64{c.cfg.Session(from), c.cfg.Session(to)}
	may := func() bool {
		return sessions == [2]uint64{c.cfg.Session(from), c.cfg.Session(to)} && min(sessions[0], sessions[1]) > 0 &&
			c.cfg.Allowed(from) && c.cfg.Allowed(to)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	far, err := c.open(ctx, to)
	if err != nil {
		c.cfg.Log.Debug("a peer takes no connection that this cluster would carry", "from", from, "peer", to, "err", err)
		return c.refuse(refusedPeer, errUnavailable)
	}
	if err := s.Send(nil); err != nil {
		far.End(nil)
		return err
	}
	c.cfg.Log.Info("carrying a connection", "from", from, "to", to)
	var moved atomic.Int64 // bytes, both ways
	go watch(ctx, cancel, &moved, may)
	err = splice(ctx, [2]Stream{s, far}, func(ctx context.Context, from, n int) error {
		if n > MaxData {
			return errTooLarge
		}
		moved.Add(int64(n))
		c.bytes.Add(int64(n))
		n += messageCost
		return cmp.Or([2]*account{a, b}[from].bytes.WaitN(ctx, n), c.all.WaitN(ctx, n))
	})
	c.cfg.Log.Info("a carried connection ended", "from", from, "to", to, "bytes", moved.Load(), "reason", err)
	if _, ok := errors.AsType[*peering.Error](err); !ok && err != nil {
		return errUnavailable // it may be the far end's word
	}
	return err
}

// Carried returns how many connections are carried now.
func (c *Carrier) Carried() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.carried
}

// open calls a peer and waits until it has accepted the connection.
func (c *Carrier) open(ctx context.Context, to peering.ClusterID) (Stream, error) {
	far, err := c.cfg.Open(ctx, to)
	if err != nil {
		return nil, err
	}
	late := time.AfterFunc(openTimeout, func() { far.End(nil) })
	defer late.Stop()
	first, err := far.Recv()
	if err == nil && len(first) > 0 {
		err = errors.New("its first response has data")
	}
	if err != nil {
		far.End(nil)
		return nil, fmt.Errorf("peer %s takes no connection: %w", to, err)
	}
	return far, nil
}

// watch ends a connection that is idle for too long, or may not be carried any more.
func watch(ctx context.Context, end context.CancelCauseFunc, moved *atomic.Int64, may func() bool) {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	last, idle := int64(-1), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if n := moved.Load(); n != last {
				last, idle = n, now
			}
			switch {
			case !may():
				end(errUnavailable)
			case now.Sub(idle) >= idleTimeout:
				end(errIdle)
			}
		}
	}
}

// ask counts a request of a peer, and returns its account.
func (c *Carrier) ask(from peering.ClusterID) (*account, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.of(from)
	if !a.asks.Allow() {
		return nil, c.refuse(refusedRate, errAsks)
	}
	return a, nil
}

// find returns the peer that another one asks for. It returns an empty ID and the reason if that one
// cannot reach it.
func (c *Carrier) find(from peering.ClusterID, target Target) (peering.ClusterID, refusal) {
	if c.cfg.Session(from) == 0 || !c.cfg.Allowed(from) {
		return "", refusedPolicy
	}
	var found peering.ClusterID
	for _, id := range c.cfg.Connected() {
		if id != from && target.Is(from, id) {
			found = id
		}
	}
	switch {
	case found == "":
		return "", refusedUnknown
	case !c.cfg.Allowed(found):
		return "", refusedPolicy
	}
	return found, 0
}

// enter counts a connection between two peers until leave is called, and returns the account of the
// second.
func (c *Carrier) enter(from, to peering.ClusterID) (b *account, leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, b := c.of(from), c.of(to)
	switch {
	case c.carried >= maxCarried, a.carried >= maxCarriedOfPeer:
		return nil, nil, c.refuse(refusedFull, errFull)
	case b.carried >= maxCarriedOfPeer:
		return nil, nil, c.refuse(refusedFull, errUnavailable)
	}
	add := func(n int) {
		c.carried += n
		a.carried += n
		b.carried += n
	}
	add(1)
	return b, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		add(-1)
	}, nil
}

// of returns a peer's account. The caller has mu.
func (c *Carrier) of(peer peering.ClusterID) *account {
	a := c.accounts[peer]
	if a != nil {
		return a
	}
	if len(c.accounts) >= maxAccounts {
		maps.DeleteFunc(c.accounts, func(_ peering.ClusterID, other *account) bool { return other.carried == 0 })
	}
	a = &account{asks: rate.NewLimiter(askRate, askBurst), bytes: limiter(c.cfg.PeerRate)}
	c.accounts[peer] = a
	return a
}

// refuse counts a refusal, and returns its error.
func (c *Carrier) refuse(why refusal, err error) error {
	c.refused[why].Add(1)
	return err
}
