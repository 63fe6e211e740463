package homeapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/entente-dev/entente/internal/accept"
	"github.com/entente-dev/entente/internal/carry"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// Pod is a pod of a consumer that runs here.
type Pod struct {
	// Consumer is its home.
	Consumer peering.ClusterID
	// Contract is the contract under which it runs, UID is its UID at home.
	Contract, UID string
}

// AbroadConfig configures an Abroad. All of it is required.
type AbroadConfig struct {
	// Listener is where pods of consumers connect.
	Listener net.Listener
	// TLS has the certificate that stands in for the API server of every home, signed by an
	// authority that the pods have as ca.crt. Abroad sets the application protocols.
	TLS *tls.Config
	// PodAt returns the pod of a consumer that has an address; false if no pod or more than one
	// has it. It must not block.
	PodAt func(netip.Addr) (Pod, bool)
	// Allowed reports whether connections are carried for a contract: whether it is in force and a
	// policy allows it. It must not block.
	Allowed func(contract string) bool
	// Open asks a pod's home to serve a connection. The call ends with ctx.
	Open func(ctx context.Context, pod Pod) (carry.Stream, error)
	Log  *slog.Logger
}

// Abroad carries connections of pods that run here to the API servers of their homes.
type Abroad struct {
	cfg AbroadConfig

	// from counts the connections of each address, and of each consumer, so that some are left for
	// the others.
	from *accept.Counts[netip.Addr]
	of   *accept.Counts[peering.ClusterID]

	mu sync.Mutex
	// open has the connections that are carried.
	open map[*carried]struct{}
}

// carried is a connection that is carried.
type carried struct {
	from netip.Addr
	pod  Pod
	end  context.CancelFunc
}

// NewAbroad returns an Abroad that accepts connections while Run runs.
func NewAbroad(cfg AbroadConfig) (*Abroad, error) {
	if cfg.Listener == nil || cfg.TLS == nil || cfg.PodAt == nil || cfg.Allowed == nil || cfg.Open == nil || cfg.Log == nil {
		return nil, errors.New("home API: all of its configuration is required")
	}
	cfg.TLS = cfg.TLS.Clone()
	cfg.TLS.NextProtos = []string{"h2", "http/1.1"}
	return &Abroad{
		cfg: cfg, open: make(map[*carried]struct{}),
		from: accept.NewCounts[netip.Addr](maxConnections, maxConnectionsOfAddress),
		of:   accept.NewCounts[peering.ClusterID](maxConnections, maxConnectionsOfConsumer),
	}, nil
}

// Run carries connections until ctx ends.
func (a *Abroad) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work.Go(func() { a.recheck(ctx) })
	err := accept.Each(ctx, a.cfg.Listener, func(error) {}, func(conn net.Conn) {
		from := accept.From(conn)
		leave, ok := a.from.Enter(from)
		if !ok {
			_ = conn.Close()
			return
		}
		work.Go(func() {
			defer leave()
			defer conn.Close()
			a.take(ctx, conn, from)
		})
	})
	if err != nil {
		return fmt.Errorf("accept pods of consumers: %w", err)
	}
	return nil
}

// recheck ends connections of pods that are gone, or that are no longer allowed to have them.
func (a *Abroad) recheck(ctx context.Context) {
	notify.Each(ctx, recheck, func() {
		a.mu.Lock()
		open := slices.Collect(maps.Keys(a.open))
		a.mu.Unlock()
		for _, c := range open {
			if pod, ok := a.cfg.PodAt(c.from); !ok || pod != c.pod || !a.cfg.Allowed(c.pod.Contract) {
				c.end()
			}
		}
	})
}

// take carries one connection, or responds to the pod with the reason why not. A client that is
// not a pod of a consumer gets no response.
func (a *Abroad) take(ctx context.Context, conn net.Conn, from netip.Addr) {
	pod, ok := a.await(ctx, from)
	if !ok {
		return
	}
	release, ok := a.of.Enter(pod.Consumer)
	if !ok {
		return
	}
	defer release()
	secure := tls.Server(conn, a.cfg.TLS)
	handshake, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if secure.HandshakeContext(handshake) != nil {
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	stream, err := a.connect(ctx, pod)
	if err != nil {
		a.cfg.Log.Info("a pod of a consumer does not reach its home's API", "peer", pod.Consumer, "contract", pod.Contract, "uid", pod.UID, "err", err)
		respond(ctx, secure, err)
		return
	}
	own := &carried{from: from, pod: pod, end: end}
	a.mu.Lock()
	a.open[own] = struct{}{}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.open, own)
	}()
	join(ctx, secure, stream, pod)
}

// await returns the pod that has an address. The address may become known a little after the pod
// started.
func (a *Abroad) await(ctx context.Context, from netip.Addr) (Pod, bool) {
	ctx, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	for {
		if pod, ok := a.cfg.PodAt(from); ok {
			return pod, true
		}
		if !notify.Pause(ctx, addressPoll) {
			return Pod{}, false
		}
	}
}

// connect asks a pod's home to serve a connection.
func (a *Abroad) connect(ctx context.Context, pod Pod) (carry.Stream, error) {
	if !a.cfg.Allowed(pod.Contract) {
		return nil, peering.Errorf(peering.ReasonPolicyRefused, "the cluster where the pod runs does not carry its home's API: its PeeringPolicy has to say homeAPI: Allowed")
	}
	// The call lasts as long as the connection, so its context has no deadline.
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(openTimeout, func() {
		cancel(&peering.Error{Reason: peering.ReasonPeerUnreachable, Message: "the pod's home does not respond", RetryAfter: time.Second})
	})
	stream, err := a.cfg.Open(ctx, pod)
	if late.Stop() {
		return stream, err
	}
	if err == nil {
		stream.End(nil)
	}
	return nil, context.Cause(ctx) //nolint:wrapcheck // it is for the pod
}

// join passes bytes between a pod and its home until either ends.
func join(ctx context.Context, pod net.Conn, home carry.Stream, of Pod) {
	near, pass := carry.Join(home, of.Consumer, pod.RemoteAddr())
	var work sync.WaitGroup
	end := func() {
		_ = near.Close()
		_ = pod.Close()
		home.End(nil)
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	work.Go(pass)
	work.Go(func() {
		defer end()
		_, _ = io.Copy(near, pod)
	})
	_, _ = io.Copy(pod, near)
	end()
	work.Wait()
}

// respond responds once to a request of a pod that cannot reach its home, and closes the
// connection.
func respond(ctx context.Context, conn *tls.Conn, why error) {
	listener := accept.NewHandoff(abroad())
	server := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		refuse(w, why)
	}))
	once := &closing{Conn: conn, closed: make(chan struct{})}
	server.ConnContext = nil
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	ctx, cancel := context.WithTimeout(ctx, refusalTimeout)
	defer cancel()
	if listener.Give(ctx, once) {
		select {
		case <-once.closed:
		case <-ctx.Done():
		}
	}
	_ = server.Close()
	_ = listener.Close()
	<-done
}

// closing is a connection that notifies when it is closed.
type closing struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *closing) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close() //nolint:wrapcheck // it is a net.Conn
}
