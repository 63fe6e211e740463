package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/notify"
)

// watchAgain is the pause before a watch that broke is started again.
const watchAgain = time.Second

// Events ranges over what happens to a peer (peers/NAME), or to all, until ctx ends. A nil event
// means that the watch begins, also after it broke: from then on no event is missed, so that is
// when to read the current state. A permanent error ends it.
func (a *Admin) Events(ctx context.Context, peer string) iter.Seq2[*ententev1.WatchEventsResponse, error] {
	return func(yield func(*ententev1.WatchEventsResponse, error) bool) {
		for {
			err := a.events(ctx, peer, func(e *ententev1.WatchEventsResponse) bool { return yield(e, nil) })
			switch {
			case err == nil:
				return
			case ctx.Err() != nil:
				yield(nil, ctx.Err())
				return
			case !passes(err):
				yield(nil, err)
				return
			}
			notify.Pause(ctx, watchAgain)
		}
	}
}

// events is one watch. It returns nil when the caller stops the iteration.
func (a *Admin) events(ctx context.Context, peer string, yield func(*ententev1.WatchEventsResponse) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.WatchEvents(ctx, &ententev1.WatchEventsRequest{Peer: peer})
	if err != nil {
		return err
	}
	// The header comes once no event is missed. A call that was refused has no header, and Recv
	// returns why.
	if md, err := stream.Header(); err == nil && md != nil && !yield(nil) {
		return nil
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		if !yield(e) {
			return nil
		}
	}
}

// passes reports whether an error is transient: the agent stops or is away, its API server does
// not respond, this side was too slow, or the deadline passed a little earlier at the other end.
func passes(err error) bool {
	if errors.Is(err, io.EOF) { // the other end closed it
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded, codes.Canceled:
		return true
	default:
		return false
	}
}

// WaitForPeering waits until a peering (peerings/NAME) has a contract whose virtual node takes
// pods. When ctx ends first, the error names what was missing.
func (a *Admin) WaitForPeering(ctx context.Context, name string) (*ententev1.Peering, error) {
	lacks := "the agent did not answer"
	for e, err := range a.Events(ctx, "") {
		if err != nil {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("wait for %s: %s: %w", name, lacks, err)
			}
			return nil, fmt.Errorf("wait for %s: %w", name, err)
		}
		// Events of other objects are ignored.
		if subject := e.GetSubject(); e != nil && subject != name && subject != e.GetPeer() {
			continue
		}
		p, missing, err := a.peering(ctx, name)
		switch {
		case err == nil && missing == "":
			return p, nil
		case err == nil:
			lacks = missing
		case !passes(err) && ctx.Err() == nil:
			return nil, fmt.Errorf("wait for %s: %w", name, err)
		}
	}
	return nil, fmt.Errorf("wait for %s: %w", name, errors.New("the watch ended"))
}

// peering returns a peering and what is missing for it to work.
func (a *Admin) peering(ctx context.Context, name string) (p *ententev1.Peering, lacks string, err error) {
	resp, err := a.GetPeering(ctx, &ententev1.GetPeeringRequest{Name: name})
	if err != nil {
		return nil, "", err
	}
	p = resp.GetPeering()
	if c := p.GetAccepted(); c.GetStatus() != "True" || p.GetProvider() == "" {
		return p, "there is no contract: " + conditionText(c), nil
	}
	peer, err := a.GetPeer(ctx, &ententev1.GetPeerRequest{Name: p.GetProvider()})
	if err != nil {
		return nil, "", err
	}
	for _, c := range peer.GetPeer().GetConditions() {
		if c.GetType() == "Offloading" {
			if c.GetStatus() == "True" {
				return p, "", nil
			}
			return p, "the virtual node does not take pods: " + conditionText(c), nil
		}
	}
	return p, "the virtual node does not take pods yet", nil
}

func conditionText(c *ententev1.Condition) string {
	if c.GetMessage() == "" {
		return "nothing is known yet"
	}
	return c.GetMessage()
}
