package server

import (
	"context"
	"sync"
	"time"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// outbox is what waits to be sent on a Sync stream. A sender of acknowledgements waits for room,
// so that a slow reader slows down the work. Only the latest status of each pod waits, and only
// the latest few events: a slow reader costs a bounded amount of memory, and the stream of a
// stuck one ends.
type outbox struct {
	// acks has what must not be lost, in order.
	acks chan *ententev1.SyncResponse

	mu       sync.Mutex
	statuses map[peering.ObjectRef]peering.PodStatus
	order    []peering.ObjectRef
	// lastBytes is the size of the statuses of pods that are gone.
	lastBytes int
	events    []peering.PodEvent
	// wake is notified of statuses and events.
	wake notify.Channel
}

func newOutbox() *outbox {
	return &outbox{
		acks:     make(chan *ententev1.SyncResponse, offloadMaxInFlight),
		statuses: make(map[peering.ObjectRef]peering.PodStatus),
		wake:     notify.New(),
	}
}

// put queues a message that must not be lost. Its error is that ctx ended.
func (o *outbox) put(ctx context.Context, m *ententev1.SyncResponse) error {
	select {
	case o.acks <- m:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// status queues a pod's status in place of an older one. An empty one that says that the pod is
// gone only adds to it: how the pod ended decides whether home runs another. It does not block.
func (o *outbox) status(s peering.PodStatus) {
	o.mu.Lock()
	older, waits := o.statuses[s.Ref]
	if !waits {
		o.order = append(o.order, s.Ref)
	}
	if s.Gone && len(s.Status) == 0 && waits {
		s = older
		s.Gone = true
	}
	if older.Gone {
		o.lastBytes -= len(older.Status)
	}
	if s.Gone && o.lastBytes+len(s.Status) > offloadMaxLastBytes {
		s.Status = nil
	}
	if s.Gone {
		o.lastBytes += len(s.Status)
	}
	o.statuses[s.Ref] = s
	o.mu.Unlock()
	o.wake.Notify()
}

// event queues an event. It does not block.
func (o *outbox) event(e peering.PodEvent) {
	o.mu.Lock()
	if len(o.events) >= offloadMaxEvents {
		o.events = append(o.events[:0], o.events[1:]...)
	}
	o.events = append(o.events, e)
	o.mu.Unlock()
	o.wake.Notify()
}

// next returns the next status or event, or nil if none waits.
func (o *outbox) next() *ententev1.SyncResponse {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.order) > 0 {
		s := o.statuses[o.order[0]]
		delete(o.statuses, s.Ref)
		if s.Gone {
			o.lastBytes -= len(s.Status)
		}
		o.order = o.order[1:]
		return wire.PodStatusTo(s)
	}
	if len(o.events) > 0 {
		e := o.events[0]
		o.events = o.events[1:]
		return wire.PodEventTo(e)
	}
	return nil
}

// send sends what waits until ctx ends. A message that cannot be sent within
// offloadSendTimeout ends the stream.
func (o *outbox) send(ctx context.Context, cancel context.CancelCauseFunc, stream ententev1.OffloadService_SyncServer) {
	cut := time.AfterFunc(offloadSendTimeout, func() {
		e := peering.Errorf(peering.ReasonTooManyCalls, "the consumer did not read for %s", offloadSendTimeout)
		e.RetryAfter = time.Second
		cancel(e)
	})
	defer cut.Stop()
	for {
		cut.Stop()
		var m *ententev1.SyncResponse
		select {
		case <-ctx.Done():
			return
		case m = <-o.acks:
		default:
			if m = o.next(); m != nil {
				break
			}
			select {
			case <-ctx.Done():
				return
			case m = <-o.acks:
			case <-o.wake:
				continue
			}
		}
		cut.Reset(offloadSendTimeout)
		if err := stream.Send(m); err != nil {
			cancel(wire.FromStatus(err))
			return
		}
	}
}
