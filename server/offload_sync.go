package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Sync implements the OffloadService.
func (s *Offload) Sync(stream ententev1.OffloadService_SyncServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	// Recv and Send cannot be interrupted but by the end of this function. So they
	// have goroutines of their own, which end right after it.
	in := make(chan *ententev1.SyncRequest)
	go func() {
		for {
			msg, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				cancel(errSyncDone)
				return
			}
			if err != nil {
				cancel(wire.FromStatus(err))
				return
			}
			select {
			case in <- msg:
			case <-ctx.Done():
				return
			}
		}
	}()
	contract, err := awaitOpen(ctx, in)
	if err != nil {
		return syncEnd(err)
	}
	peer, err := s.authorize(ctx, contract)
	if err != nil {
		return err
	}
	release, err := s.supersede(ctx, contract, cancel)
	if err != nil {
		return syncEnd(err)
	}
	defer release()
	shared, leave := s.share(peer)
	defer leave()
	run := &syncRun{
		Offload: s, peer: peer, contract: contract, in: in,
		out:   newOutbox(),
		bytes: semaphore.NewWeighted(offloadMaxInFlightBytes),
		count: semaphore.NewWeighted(offloadMaxInFlight),
		pods:  semaphore.NewWeighted(offloadMaxPods),
		lanes: make(map[string]*lane), shared: shared,
	}
	go run.out.send(ctx, cancel, stream)
	cancel(run.serve(ctx))
	run.work.Wait()
	return syncEnd(context.Cause(ctx))
}

// errSyncDone is the cause when the consumer ended the stream itself.
var errSyncDone = errors.New("the consumer ended the stream")

func syncEnd(err error) error {
	if errors.Is(err, errSyncDone) {
		return nil
	}
	return err
}

func awaitOpen(ctx context.Context, in <-chan *ententev1.SyncRequest) (string, error) {
	limit := time.NewTimer(offloadOpenTimeout)
	defer limit.Stop()
	select {
	case msg := <-in:
		open := msg.GetOpen()
		if open == nil {
			return "", wire.Errorf(wire.ReasonRequestInvalid, "the first message of a sync stream is open")
		}
		return wire.ContractIDFrom(open.GetContractId())
	case <-limit.C:
		return "", wire.Errorf(wire.ReasonRequestInvalid, "the stream did not say within %s which contract it is for", offloadOpenTimeout)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// syncRun is one Sync stream that was let in.
type syncRun struct {
	*Offload
	peer     peering.ClusterID
	contract string
	in       <-chan *ententev1.SyncRequest
	out      *outbox

	bytes, count, pods *semaphore.Weighted
	shared             *peerWork
	// lanes has the work of each namespace that has any.
	lanesMu sync.Mutex
	lanes   map[string]*lane
	work    sync.WaitGroup
}

// lane is the work of one namespace, in the order in which it came.
type lane struct {
	queue []syncTask
}

type syncTask struct {
	ref    peering.ObjectRef
	hash   peering.Hash
	size   int64
	delete bool
	do     func(context.Context) error
}

// serve says what is held, and then carries out what comes until ctx ends or
// something is wrong with the stream.
func (r *syncRun) serve(ctx context.Context) error {
	held, err := r.cfg.Objects.Held(ctx, r.contract)
	if err != nil {
		return &wire.Error{
			Reason: wire.ReasonKubernetes, Message: "the provider could not list what it holds; try again",
			RetryAfter: time.Second, Err: err,
		}
	}
	for _, h := range held {
		if err := r.out.put(ctx, wire.HeldTo(h)); err != nil {
			return err
		}
	}
	if err := r.out.put(ctx, wire.SyncedTo()); err != nil {
		return err
	}
	r.work.Go(func() { r.watch(ctx) })
	recheck := time.NewTicker(offloadRecheck)
	defer recheck.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-recheck.C:
			if err := r.open(r.peer, r.contract); err != nil {
				return err
			}
		case msg := <-r.in:
			if err := r.take(ctx, msg); err != nil {
				return err
			}
		}
	}
}

// watch brings statuses and events, again and again until ctx ends.
func (r *syncRun) watch(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.cfg.Objects.Watch(ctx, r.contract, r.out.status, r.out.event)
		if ctx.Err() != nil {
			return
		}
		r.cfg.Log.Warn("watch pods of contract", "contract", r.contract, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// take queues one message of the consumer. Its error ends the stream.
func (r *syncRun) take(ctx context.Context, msg *ententev1.SyncRequest) error {
	task := syncTask{size: 1}
	switch x := msg.GetMessage().(type) {
	case *ententev1.SyncRequest_Apply_:
		o, err := wire.ApplyFrom(x.Apply)
		if err != nil {
			return r.refuseInvalid(ctx, x.Apply, err)
		}
		task.ref, task.hash, task.size = o.Ref, o.Hash(), int64(len(o.JSON))
		task.do = func(ctx context.Context) error { return r.apply(ctx, o) }
	case *ententev1.SyncRequest_Delete_:
		ref, grace, err := wire.DeleteFrom(x.Delete)
		if wire.ReasonOf(err) == wire.ReasonProtocolUnsupported {
			return r.refuseLater(ctx, x.Delete.GetRef(), nil, err)
		}
		if err != nil {
			return err
		}
		task.ref, task.delete = ref, true
		task.do = func(ctx context.Context) error {
			return r.cfg.Objects.Delete(ctx, r.contract, ref, grace)
		}
	case nil:
		if len(msg.ProtoReflect().GetUnknown()) == 0 {
			return wire.Errorf(wire.ReasonRequestInvalid, "a message of a sync stream says something")
		}
		return nil // of a later revision, and so no word on what is known here
	default:
		return wire.Errorf(wire.ReasonRequestInvalid, "a sync stream takes apply and delete after open, not %T", x)
	}
	// Nothing more is read while too much is to do: the consumer waits, not we.
	if err := r.count.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	if err := r.bytes.Acquire(ctx, task.size); err != nil {
		r.count.Release(1)
		return context.Cause(ctx)
	}
	if older, ok := r.enqueue(ctx, task); ok {
		r.count.Release(1)
		r.bytes.Release(older.size)
		return r.out.put(ctx, wire.AckTo(peering.Ack{Ref: older.ref, Hash: older.hash, Refusal: &peering.Refusal{
			Reason: peering.RefusedInternal, Retryable: true,
			Message: fmt.Sprintf("a newer state of %s came before this one was written", older.ref),
		}}))
	}
	return nil
}

// refuseInvalid refuses an object that cannot be read, if it can be said which
// that is. Otherwise the stream ends.
func (r *syncRun) refuseInvalid(ctx context.Context, m *ententev1.SyncRequest_Apply, cause error) error {
	ref, err := wire.ObjectRefFrom(m.GetRef())
	if len(m.GetHash()) == len(peering.Hash{}) && wire.ReasonOf(err) == wire.ReasonProtocolUnsupported {
		return r.refuseLater(ctx, m.GetRef(), m.GetHash(), err)
	}
	if err != nil || len(m.GetHash()) != len(peering.Hash{}) {
		return cause
	}
	return r.out.put(ctx, wire.AckTo(peering.Ack{
		Ref: ref, Hash: peering.Hash(m.GetHash()),
		Refusal: &peering.Refusal{Reason: peering.RefusedInvalid, Message: cause.Error()},
	}))
}

// refuseLater refuses an object of a kind that only a later revision knows, by the
// name that it came with; nothing else is refused with it.
func (r *syncRun) refuseLater(ctx context.Context, ref *ententev1.ObjectRef, hash []byte, cause error) error {
	ref.ProtoReflect().SetUnknown(nil)
	return r.out.put(ctx, &ententev1.SyncResponse{Message: &ententev1.SyncResponse_Ack_{Ack: &ententev1.SyncResponse_Ack{
		Ref: ref, Hash: hash, Reason: string(peering.RefusedInvalid), Message: cause.Error(),
	}}})
}

// enqueue puts a task behind the others of its namespace, and sees that someone
// works on them. Of an object that is applied again before the first state was
// begun only the last is written: the first, which is returned, will not be.
func (r *syncRun) enqueue(ctx context.Context, t syncTask) (older syncTask, superseded bool) {
	space := t.ref.Namespace
	if t.ref.Kind == peering.KindNamespace {
		space = t.ref.Name
	}
	r.lanesMu.Lock()
	defer r.lanesMu.Unlock()
	l, ok := r.lanes[space]
	if !ok {
		l = &lane{}
		r.lanes[space] = l
		r.work.Go(func() { r.drain(ctx, space, l) })
	}
	for i := len(l.queue) - 1; i >= 0; i-- {
		if older = l.queue[i]; older.ref != t.ref {
			continue
		}
		if older.delete || t.delete {
			break
		}
		l.queue[i] = t
		return older, true
	}
	l.queue = append(l.queue, t)
	return syncTask{}, false
}

// drain works on a namespace until there is nothing to do. What a pod may need
// is done in order, one after the other; pods then beside each other.
func (r *syncRun) drain(ctx context.Context, space string, l *lane) {
	for {
		r.lanesMu.Lock()
		if len(l.queue) == 0 {
			delete(r.lanes, space)
			r.lanesMu.Unlock()
			return
		}
		t := l.queue[0]
		l.queue = l.queue[1:]
		r.lanesMu.Unlock()
		if t.ref.Kind != peering.KindPod || r.pods.Acquire(ctx, 1) != nil {
			r.carryOut(ctx, t)
			continue
		}
		r.work.Go(func() {
			defer r.pods.Release(1)
			r.carryOut(ctx, t)
		})
	}
}

// carryOut does a task and answers it. Without an answer, because ctx ended, the
// consumer compares again.
func (r *syncRun) carryOut(ctx context.Context, t syncTask) {
	defer r.count.Release(1)
	defer r.bytes.Release(t.size)
	turn := r.shared.applies
	if t.delete {
		turn = r.shared.deletes
	}
	if turn.Acquire(ctx, 1) != nil {
		return
	}
	defer turn.Release(1)
	limited, cancel := context.WithTimeout(ctx, offloadApplyTimeout)
	defer cancel()
	err := try(limited, t.do)
	if ctx.Err() != nil {
		return
	}
	ack := peering.Ack{Ref: t.ref, Hash: t.hash}
	if err != nil && !errors.As(err, &ack.Refusal) {
		r.cfg.Log.Warn("carry out sync message", "contract", r.contract, "object", t.ref.String(), "err", err)
		ack.Refusal = &peering.Refusal{
			Reason: peering.RefusedInternal, Retryable: true,
			Message: fmt.Sprintf("the provider's cluster did not take %s; it is tried again, and the provider's agent says why in its log", t.ref),
		}
	}
	// It fails only when ctx ended: then the consumer compares again.
	_ = r.out.put(ctx, wire.AckTo(ack))
}

// try turns a panic into an error: no object from outside stops the agent.
func try(ctx context.Context, do func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return do(ctx)
}

// apply applies an object, if the contract is open still.
func (r *syncRun) apply(ctx context.Context, o peering.Object) error {
	if err := r.open(r.peer, r.contract); err != nil {
		return &peering.Refusal{Reason: peering.RefusedContract, Message: err.Error()}
	}
	return r.cfg.Objects.Apply(ctx, r.contract, o)
}
