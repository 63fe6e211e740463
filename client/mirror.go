package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// MirrorHandler is called with what a Mirror receives. All methods but Orphan are called one at a
// time, in order, and must not block for long. None may call the Mirror's Run.
type MirrorHandler interface {
	// Connected is called with true once the provider listed all that it holds, and with false
	// when the stream ended.
	Connected(bool)
	// PodStatus is called with a pod's status. With Gone the pod has ended and will not run again,
	// and the status is its last one if the provider knows it.
	PodStatus(peering.PodStatus)
	// PodEvent is called with an event of a pod.
	PodEvent(peering.PodEvent)
	// Ack is called with the acknowledgement of an object that was sent, or with this side's own
	// refusal of an object that must not be sent.
	Ack(peering.Ack)
	// Orphan reports whether an object that the provider holds, and that is not wanted here, is to
	// be deleted. It must only return true with positive evidence that the object is gone at home.
	// It may block, and is called again if it returned false.
	Orphan(context.Context, peering.Held) bool
}

// MirrorConfig configures a Mirror.
type MirrorConfig struct {
	// Contract is the contract's ID. Required.
	Contract string
	// Conn reaches the provider, over any of its connections. Required.
	Conn grpc.ClientConnInterface
	// Handler is called with what the provider sends. Required.
	Handler MirrorHandler
	// Asked, if not nil, is called when the provider asks whether this side is there, before the
	// answer is sent. It must not block.
	Asked func()
	// MinBackoff and MaxBackoff bound the pause between two streams. They default
	// to 250 ms and 10 s.
	MinBackoff, MaxBackoff time.Duration
	// Log gets what happens to the stream. If nil, it is discarded.
	Log *slog.Logger
}

// Mirror keeps the objects of one contract at the provider as they are wanted here. On each new
// stream it compares what is wanted with what the provider holds, and sends the differences. It
// deletes only objects for which Unwant was called, or Orphan returned true.
type Mirror struct {
	cfg    MirrorConfig
	client ententev1.OffloadServiceClient

	mu    sync.Mutex
	state *mirrorState
	// ping is the number of the ping to answer, on the current stream, 0 if there is none.
	ping uint64
	// wake notifies Run that there may be something to do.
	wake chan struct{}

	// calls serialises the handler's calls.
	calls sync.Mutex
	// complain limits the log lines that a provider can cause.
	complain rate.Sometimes
}

// NewMirror returns a Mirror that does nothing until Run.
func NewMirror(cfg MirrorConfig) (*Mirror, error) {
	if cfg.Contract == "" || cfg.Conn == nil || cfg.Handler == nil {
		return nil, errors.New("mirror: contract, connection and handler are required")
	}
	if cfg.MinBackoff <= 0 {
		cfg.MinBackoff = 250 * time.Millisecond
	}
	if cfg.MaxBackoff < cfg.MinBackoff {
		cfg.MaxBackoff = max(10*time.Second, cfg.MinBackoff)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("contract", cfg.Contract)
	return &Mirror{
		cfg:    cfg,
		client: ententev1.NewOffloadServiceClient(cfg.Conn),
		state:  newMirrorState(),
		wake:   make(chan struct{}, 1),

		complain: rate.Sometimes{First: mirrorMaxComplaints, Interval: mirrorComplainAgain},
	}, nil
}

// Want sets the desired state of an object at the provider. The last call counts. An object that
// must not be sent, or for which there is no room, is refused through Handler.Ack and not kept:
// the caller has to call Want again later. A call without a change costs nothing. It never
// blocks.
func (m *Mirror) Want(o peering.Object) {
	m.mu.Lock()
	_ = m.state.want(o) // Run reports a refusal
	m.mu.Unlock()
	m.poke()
}

// Unwant records that an object is positively gone at home, or being deleted, as a pod may be.
// Only this and Handler.Orphan delete objects at the provider. grace is for pods, in seconds; nil
// means that of the pod. A second call with another grace period deletes again, with that one. A
// pod ends with Handler.PodStatus with Gone.
func (m *Mirror) Unwant(ref peering.ObjectRef, grace *int64) {
	if wire.CheckObjectRef(ref) != nil {
		// It was never wanted, and the provider cannot have it.
		return
	}
	m.mu.Lock()
	m.state.unwantObject(ref, grace)
	m.mu.Unlock()
	m.poke()
}

// Ran records that the provider ran the pod before this process began. If the provider does not
// hold the pod, it is reported Gone and not sent, since it would run a second time.
func (m *Mirror) Ran(ref peering.ObjectRef) {
	if ref.Kind != peering.KindPod || wire.CheckObjectRef(ref) != nil {
		return
	}
	m.mu.Lock()
	m.state.markRan(ref)
	m.mu.Unlock()
	m.poke()
}

// Ready records that Want was called for everything that is wanted. Before that no orphan is
// deleted, since the caller may still want it.
func (m *Mirror) Ready() {
	m.mu.Lock()
	m.state.setReady()
	m.mu.Unlock()
	m.poke()
}

// Excess returns why there is no room for some wanted objects. It is empty if there is room for
// all.
func (m *Mirror) Excess() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.excess()
}

func (m *Mirror) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run keeps a stream to the provider until ctx ends, and then returns nil.
func (m *Mirror) Run(ctx context.Context) error {
	backoff := m.cfg.MinBackoff
	for ctx.Err() == nil {
		synced, cause := m.session(ctx)
		if ctx.Err() != nil {
			break
		}
		if synced {
			backoff = m.cfg.MinBackoff
		}
		if wire.ReasonOf(cause) == peering.ReasonSyncSuperseded {
			// Another process of this cluster took over: try again after a while.
			backoff = m.cfg.MaxBackoff
		}
		m.cfg.Log.Info("sync stream ended", "err", cause, "retryIn", backoff)
		notify.Pause(ctx, backoff/2+rand.N(backoff/2+1))
		backoff = min(2*backoff, m.cfg.MaxBackoff)
	}
	return nil //nolint:nilerr // the error of a stream is logged, and ends no more than the stream
}

// session runs one stream from Open to its end. synced says whether it came as
// far as a comparison.
func (m *Mirror) session(parent context.Context) (synced bool, err error) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	stream, err := m.client.Sync(ctx, grpc.WaitForReady(true),
		grpc.MaxCallSendMsgSize(wire.MaxOffloadMessage), grpc.MaxCallRecvMsgSize(mirrorMaxMessage))
	if err != nil {
		return false, fmt.Errorf("open sync stream: %w", err)
	}
	if err := stream.Send(wire.OpenTo(m.cfg.Contract)); err != nil {
		// Recv returns what went wrong.
		_, err = stream.Recv()
		return false, fmt.Errorf("open sync stream: %w", err)
	}
	m.mu.Lock()
	m.state.connect()
	m.ping = 0
	m.mu.Unlock()

	limit := time.AfterFunc(mirrorSyncTimeout, func() { cancel(errors.New("the provider did not list what it holds in time")) })
	defer limit.Stop()
	if err := m.receiveHeld(stream); err != nil {
		return false, errors.Join(err, context.Cause(ctx))
	}
	limit.Stop()

	asks := make(chan peering.Held, mirrorMaxInFlight)
	var work sync.WaitGroup
	work.Go(func() { cancel(m.sendLoop(ctx, stream, asks)) })
	work.Go(func() { m.askLoop(ctx, asks) })
	m.call(func(h MirrorHandler) { h.Connected(true) })
	m.poke()
	err = m.receiveLoop(stream)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(nil)
	work.Wait()
	m.call(func(h MirrorHandler) { h.Connected(false) })
	return true, err
}

func (m *Mirror) call(f func(MirrorHandler)) {
	m.calls.Lock()
	defer m.calls.Unlock()
	f(m.cfg.Handler)
}

// receiveHeld receives the list of what the provider holds.
func (m *Mirror) receiveHeld(stream ententev1.OffloadService_SyncClient) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receive what the provider holds: %w", err)
		}
		switch x := msg.GetMessage().(type) {
		case *ententev1.SyncResponse_Existing_:
			held, err := wire.HeldFrom(x.Existing)
			if laterKind(err) {
				continue // a later version of this cluster's agent sent it
			}
			if err != nil {
				return wire.Response(err)
			}
			m.mu.Lock()
			ok := m.state.hold(held)
			m.mu.Unlock()
			if !ok {
				return fmt.Errorf("the provider holds more than %d objects", mirrorMaxObjects)
			}
		case *ententev1.SyncResponse_Synced_:
			m.mu.Lock()
			m.state.sync(time.Now())
			m.mu.Unlock()
			return nil
		case nil: // of a later version
		default:
			return fmt.Errorf("the provider sent %T before the end of the list of what it holds", x)
		}
	}
}

// receiveLoop receives acknowledgements, statuses and events until the stream ends.
func (m *Mirror) receiveLoop(stream ententev1.OffloadService_SyncClient) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receive from the provider: %w", err)
		}
		if err := m.receive(msg); err != nil && !laterKind(err) {
			return wire.Response(err)
		}
	}
}

// laterKind reports whether an error is about an object of a kind that only a later version
// knows, which this one ignores.
func laterKind(err error) bool { return wire.ReasonOf(err) == peering.ReasonProtocolUnsupported }

func (m *Mirror) receive(msg *ententev1.SyncResponse) error {
	switch x := msg.GetMessage().(type) {
	case *ententev1.SyncResponse_Ack_:
		ack, err := wire.AckFrom(x.Ack)
		if err != nil {
			return err
		}
		m.mu.Lock()
		known := m.state.ack(ack, time.Now())
		m.mu.Unlock()
		m.poke()
		if known {
			m.call(func(h MirrorHandler) { h.Ack(ack) })
		}
	case *ententev1.SyncResponse_Status_:
		m.receiveStatus(x.Status)
	case *ententev1.SyncResponse_Event_:
		event, err := wire.PodEventFrom(x.Event)
		if err != nil {
			return err
		}
		m.mu.Lock()
		_, known := m.state.records[keyOf(event.Ref)]
		m.mu.Unlock()
		if known {
			m.call(func(h MirrorHandler) { h.PodEvent(event) })
		}
	case *ententev1.SyncResponse_Ping_:
		m.mu.Lock()
		m.ping = x.Ping.GetNumber()
		m.mu.Unlock()
		m.poke()
	}
	// Any other message is of a later version, and is ignored.
	return nil
}

// receiveStatus handles a pod's status. One that cannot be read concerns its pod alone: a user or a kubelet may have
// caused it, and the stream is that of all pods of the contract.
func (m *Mirror) receiveStatus(x *ententev1.SyncResponse_Status) {
	status, err := wire.PodStatusFrom(x)
	if err != nil {
		end, usable := wire.PodEndFrom(x)
		if !laterKind(err) {
			m.complain.Do(func() { m.cfg.Log.Warn("invalid pod status", "ref", end.Ref.String(), "err", wire.Response(err)) })
		}
		if !usable {
			return
		}
		status = end
	}
	m.mu.Lock()
	hear := m.state.podStatus(status, time.Now())
	m.mu.Unlock()
	if status.Gone || !hear {
		m.poke()
	}
	if hear {
		m.call(func(h MirrorHandler) { h.PodStatus(status) })
	}
}

// sendLoop does what the state plans, whenever something changed.
func (m *Mirror) sendLoop(ctx context.Context, stream ententev1.OffloadService_SyncClient, asks chan<- peering.Held) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-m.wake:
		case <-timer.C:
		}
		now := time.Now()
		m.mu.Lock()
		overdue := m.state.overdue(now)
		if overdue {
			m.mu.Unlock()
			return fmt.Errorf("the provider did not answer within %s", mirrorAckTimeout)
		}
		steps, wake := m.state.plan(now)
		refused, ping := m.state.takeUnreported(), m.ping
		m.ping = 0
		m.mu.Unlock()
		for _, ack := range refused {
			m.call(func(h MirrorHandler) { h.Ack(ack) })
		}
		err := m.take(stream, steps, asks)
		if err == nil {
			err = m.answer(stream, ping)
		}
		if errors.Is(err, io.EOF) {
			// The stream ended. Recv returns why, which ends the session.
			<-ctx.Done()
			return context.Cause(ctx)
		} else if err != nil {
			return err
		}
		timer.Stop()
		if len(steps) > 0 {
			// A step may make room for another.
			m.poke()
		} else if !wake.IsZero() {
			timer.Reset(time.Until(wake))
		}
	}
}

// answer answers a ping of the provider, after the changes that were due before.
func (m *Mirror) answer(stream ententev1.OffloadService_SyncClient, ping uint64) error {
	if ping == 0 {
		return nil
	}
	if m.cfg.Asked != nil {
		m.cfg.Asked()
	}
	if err := stream.Send(wire.PongTo(ping)); err != nil {
		return fmt.Errorf("answer the provider: %w", err)
	}
	return nil
}

func (m *Mirror) take(stream ententev1.OffloadService_SyncClient, steps []mirrorStep, asks chan<- peering.Held) error {
	for _, st := range steps {
		var msg *ententev1.SyncRequest
		switch st.kind {
		case stepHeld:
			ack := peering.Ack{Ref: st.ref, Hash: st.held.Hash}
			m.call(func(h MirrorHandler) { h.Ack(ack) })
			continue
		case stepGone:
			gone := peering.PodStatus{Ref: st.ref, Gone: true}
			m.call(func(h MirrorHandler) { h.PodStatus(gone) })
			continue
		case stepAsk:
			select {
			case asks <- st.held:
			default:
				// Enough orphans wait; this one comes again after the interval.
			}
			continue
		case stepDelete:
			msg = wire.DeleteTo(st.ref, st.grace)
		case stepApply:
			msg = wire.ApplyTo(st.object)
			if st.base != nil {
				msg = wire.PatchTo(st.object, st.base, st.baseHash)
			}
		default:
			continue
		}
		if err := stream.Send(msg); err != nil {
			return fmt.Errorf("send %s: %w", st.ref, err)
		}
	}
	return nil
}

// askLoop calls Handler.Orphan for one orphan after the other, beside the stream.
func (m *Mirror) askLoop(ctx context.Context, asks <-chan peering.Held) {
	for {
		select {
		case <-ctx.Done():
			return
		case held := <-asks:
			mayGo := m.cfg.Handler.Orphan(ctx, held)
			if ctx.Err() != nil {
				return
			}
			m.mu.Lock()
			m.state.orphan(held.Ref, mayGo, time.Now())
			m.mu.Unlock()
			m.poke()
		}
	}
}
