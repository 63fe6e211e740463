package session

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/entente-dev/entente/internal/identity"
)

// dials records what is dialled and when.
type dials struct {
	mu  sync.Mutex
	all []string
	at  map[string][]time.Time
}

func (d *dials) add(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at = map[string][]time.Time{}
	}
	d.all = append(d.all, address)
	d.at[address] = append(d.at[address], time.Now())
}

func (d *dials) has(address string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.all, address)
}

// recorded records dials, and lets only these of Also be dialled.
func recorded(d *dials, may ...string) nodeOption {
	return func(c *Config, s *identity.SourceConfig) {
		dialOnly(c, s)
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			d.add(address)
			return new(net.Dialer).DialContext(ctx, network, address)
		}
		c.MayDial = func(endpoint string) bool { return slices.Contains(may, endpoint) }
	}
}

// A peer that moved is found at an endpoint that others name, although some of them lie.
func TestAPeerThatMovedIsFound(t *testing.T) {
	t.Parallel()
	b, mallory := start(t), start(t)
	const gone, forbidden = "127.0.0.1:1", "127.0.0.1:2"
	var d dials
	a := start(t, recorded(&d, mallory.addr, b.addr))
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{gone}, Also: []string{gone, forbidden, mallory.addr, b.addr}}})
	eventually(t, "there is a session", func() bool { return a.Status(b.id).Session != nil })
	if s := a.Status(b.id).Session; s.Endpoint != b.addr || !s.Dialled || s.Peer != b.id {
		t.Errorf("the session is %+v", s)
	}
	mustWho(t, a, b)
	if d.has(forbidden) {
		t.Error("it was dialled at an address that may not be dialled")
	}
	if d.all[0] != gone {
		t.Errorf("dialled %v: not its own endpoint first", d.all)
	}
}

// Endpoints that others name are not dialled while the peer's own respond.
func TestHintedEndpointsAreNotDialledWhileItsOwnRespond(t *testing.T) {
	t.Parallel()
	b, other := start(t), start(t)
	var d dials
	a := start(t, recorded(&d, other.addr))
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}, Also: []string{other.addr}}})
	mustWho(t, a, b)
	// A peer without endpoints of its own dials this side, and is not dialled.
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}, Also: []string{other.addr}}, {ID: other.id, Also: []string{other.addr}}})
	mustWho(t, a, b)
	if d.has(other.addr) {
		t.Errorf("dialled %v", d.all)
	}
}

// Endpoints that others name do not delay the dials of the peer's own, even if they hang and
// change all the time.
func TestHintedEndpointsDelayNoDial(t *testing.T) {
	t.Parallel()
	own := "192.0.2.1:7443"
	others := []string{"192.0.2.11:7443", "192.0.2.12:7443", "192.0.2.13:7443", "192.0.2.14:7443", "192.0.2.15:7443"}
	self, peer := newIdentity(t), newIdentity(t)
	synctest.Test(t, func(t *testing.T) {
		var d dials
		source, err := identity.NewSource(identity.SourceConfig{Identity: self})
		if err != nil {
			t.Fatal(err)
		}
		m, err := New(Config{
			Source: source, Bundles: identity.NewBundles(), Server: grpc.NewServer(),
			MayDial: func(string) bool { return true },
			Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
				d.add(address)
				if address == own {
					return nil, errors.New("nothing listens there")
				}
				<-ctx.Done()
				return nil, ctx.Err()
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		var changes sync.WaitGroup
		defer changes.Wait()
		changes.Go(func() {
			for i := 0; ctx.Err() == nil; i++ { // Another endpoint is named each second.
				m.SetPeers([]Peer{{ID: peer.ID(), Endpoints: []string{own}, Also: append(others[i%5:5:5], others[:i%5]...)}})
				time.Sleep(time.Second)
			}
		})
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
		times := d.at[own]
		if len(times) < 30 {
			t.Fatalf("its own endpoint was dialled %d times", len(times))
		}
		for i := 1; i < len(times); i++ {
			want := min(float64(backoffMin)*math.Pow(backoffFactor, float64(i-1)), float64(backoffMax))
			if pause := float64(times[i].Sub(times[i-1])); pause > want*(1+backoffJitter)+1 || pause < want*(1-backoffJitter)-1 {
				t.Errorf("pause %d was %s, want %s give or take a fifth", i, time.Duration(pause), time.Duration(want))
			}
			among := 0
			for _, o := range others {
				for _, at := range d.at[o] {
					if !at.Before(times[i-1]) && at.Before(times[i]) {
						among++
					}
				}
			}
			if among > alsoTries {
				t.Errorf("in round %d %d of the others were dialled", i, among)
			}
		}
		for _, o := range others {
			if len(d.at[o]) == 0 {
				t.Errorf("%s was never tried", o)
			}
		}
	})
}
