package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/remotecommand"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// OffloadObjects applies the objects of contracts.
type OffloadObjects interface {
	// Held returns all objects that exist for the contract.
	Held(ctx context.Context, contract string) ([]peering.Held, error)
	// Admit waits, for a limited time, until the write budget of the contract's consumer allows a
	// write, first come first served. Apply is called next, and done after it. A refusal is a
	// *peering.Refusal.
	Admit(ctx context.Context, contract string) (done func(), err error)
	// Apply writes the object, and returns nil once it is persisted. A refusal is a
	// *peering.Refusal.
	Apply(ctx context.Context, contract string, o peering.Object) error
	// Delete removes the object if it has the UID of ref, and returns nil once
	// that is persisted or when there is no such object. grace is the grace period of
	// a pod in seconds; nil means that of its spec.
	Delete(ctx context.Context, contract string, ref peering.ObjectRef, grace *int64) error
	// Watch calls status for each pod of the contract and then whenever one
	// changes, and event whenever something happens to one, until ctx ends. The
	// functions do not block. A *peering.Error ends the stream, so that the consumer
	// compares again; after any other it is called again.
	Watch(ctx context.Context, contract string, status func(peering.PodStatus), event func(peering.PodEvent)) error
}

// OffloadStreams opens streams into the pods of contracts. An error for which
// k8s.io/apimachinery's IsNotFound is true means that there is no such pod.
type OffloadStreams interface {
	// Logs opens a container's log.
	Logs(ctx context.Context, contract string, pod peering.ObjectRef, o *corev1.PodLogOptions) (io.ReadCloser, error)
	// Exec runs o.Command, or attaches if that is empty, until the process ends.
	// An exit code is an exec.CodeExitError of k8s.io/client-go/util/exec. It
	// calls ready before it starts the process, when there is a pod to run it in.
	Exec(ctx context.Context, contract string, pod peering.ObjectRef, o *corev1.PodExecOptions, s remotecommand.StreamOptions, ready func()) error
	// PortForward carries one connection, until either end closes it. It closes
	// rw. It calls ready when there is a pod to connect to.
	PortForward(ctx context.Context, contract string, pod peering.ObjectRef, port int32, rw io.ReadWriteCloser, ready func()) error
}

// OffloadMetrics measures the pods of contracts.
type OffloadMetrics interface {
	// PodMetrics returns what the contract's pods use. An error that is not a *peering.Error
	// is not shown to the peer.
	PodMetrics(ctx context.Context, contract string) (peering.ContractMetrics, error)
}

// OffloadFences probes consumers that agreed on a fence. Its methods do not block.
type OffloadFences interface {
	// Ask returns the number of a ping for the consumer of a contract, which is then sent at
	// once; false if the contract has no fence.
	Ask(contract string) (number uint64, ok bool)
	// Answered records its answer.
	Answered(contract string, number uint64)
}

// OffloadContract is what an OffloadService needs to know of a contract.
type OffloadContract struct {
	// Consumer is the cluster that may use it.
	Consumer peering.ClusterID
	// Closed says that it ended.
	Closed bool
}

// OffloadConfig configures an Offload.
type OffloadConfig struct {
	// Objects and Streams do the work. Required.
	Objects OffloadObjects
	Streams OffloadStreams
	// Metrics measures pods. If nil, no pod is measured.
	Metrics OffloadMetrics
	// Fences probes consumers of contracts that have a fence. If nil, no contract has one.
	Fences OffloadFences
	// Contracts returns a contract in which this cluster is the provider.
	// Required. It must not block.
	Contracts func(id string) (OffloadContract, bool)
	// Peer returns who calls. Required.
	Peer func(context.Context) (peering.ClusterID, bool)
	// Log takes the errors that peers do not see. If nil, they are discarded.
	Log *slog.Logger
}

// Offload serves the OffloadService: it authorizes callers by contract, enforces limits, and
// passes the work to the interfaces of its configuration.
type Offload struct {
	ententev1.UnimplementedOffloadServiceServer
	cfg OffloadConfig

	mu sync.Mutex
	// syncs is the only Sync stream of each contract.
	syncs map[string]*syncTurn
	// works is the concurrent work of each peer that has streams.
	works map[peering.ClusterID]*peerWork
	// remembered is for the objects that are remembered for all peers.
	remembered *room
}

// peerWork limits the concurrent work for a peer.
type peerWork struct {
	// applies and deletes limit those of all its Sync streams.
	applies, deletes *semaphore.Weighted
	// podStreams limits its logs, execs and port-forwards.
	podStreams *semaphore.Weighted
	// remembered is for the objects that are remembered for it.
	remembered *room
	streams    int
}

// syncTurn is the Sync stream that a contract has now.
type syncTurn struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// NewOffload returns an OffloadService to be registered with a gRPC server. The
// server has to take messages of wire.MaxOffloadMessage bytes.
func NewOffload(cfg OffloadConfig) (*Offload, error) {
	if cfg.Objects == nil || cfg.Streams == nil || cfg.Contracts == nil || cfg.Peer == nil {
		return nil, errors.New("offload service: objects, streams, contracts and peer are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Offload{cfg: cfg, syncs: make(map[string]*syncTurn), works: make(map[peering.ClusterID]*peerWork), remembered: &room{left: offloadMaxRememberedAll}}, nil
}

// authorize returns the caller, if the contract is the caller's and open.
func (s *Offload) authorize(ctx context.Context, contract string) (peering.ClusterID, error) {
	peer, ok := s.cfg.Peer(ctx)
	if !ok {
		return "", peering.Errorf(peering.ReasonPeerNotTrusted, "the caller is not a cluster that is trusted here; join first")
	}
	if _, err := wire.ContractIDFrom(contract); err != nil {
		return "", err
	}
	return peer, s.open(peer, contract)
}

// open returns an error unless the contract is the peer's and open. A contract of another
// peer is unknown, as one that does not exist.
func (s *Offload) open(peer peering.ClusterID, contract string) error {
	c, ok := s.cfg.Contracts(contract)
	if !ok || c.Consumer != peer {
		return peering.Errorf(peering.ReasonContractUnknown, "there is no contract %s with the caller here; ask for a new one", contract)
	}
	if c.Closed {
		return peering.Errorf(peering.ReasonContractClosed, "contract %s is closed; ask for a new one", contract)
	}
	return nil
}

// supersede makes this stream the contract's only one: it ends an older one and waits until
// that has returned.
func (s *Offload) supersede(ctx context.Context, contract string, cancel context.CancelCauseFunc) (release func(), err error) {
	turn := &syncTurn{cancel: cancel, done: make(chan struct{})}
	release = func() {
		s.mu.Lock()
		if s.syncs[contract] == turn {
			delete(s.syncs, contract)
		}
		s.mu.Unlock()
		close(turn.done)
	}
	s.mu.Lock()
	older := s.syncs[contract]
	s.syncs[contract] = turn
	s.mu.Unlock()
	if older == nil {
		return release, nil
	}
	older.cancel(peering.Errorf(peering.ReasonSyncSuperseded, "the consumer opened a newer stream for contract %s", contract))
	select {
	case <-older.done:
		return release, nil
	case <-ctx.Done():
		release()
		return nil, context.Cause(ctx)
	}
}

// share returns what the streams of a peer share. It is kept until each of them called release.
func (s *Offload) share(peer peering.ClusterID) (w *peerWork, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w = s.works[peer]
	if w == nil {
		w = &peerWork{
			applies: semaphore.NewWeighted(offloadMaxWork), deletes: semaphore.NewWeighted(offloadMaxWork),
			podStreams: semaphore.NewWeighted(offloadMaxStreams), remembered: &room{left: offloadMaxRemembered},
		}
		s.works[peer] = w
	}
	w.streams++
	return w, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.streams--; w.streams == 0 {
			delete(s.works, peer)
		}
	}
}

// podError is the error of a stream into a pod as a peer gets it.
func podError(err error, pod peering.ObjectRef) error {
	var own *peering.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case apierrors.IsNotFound(err):
		return &peering.Error{Reason: peering.ReasonPodUnknown, Message: pod.String() + " is not at the provider, or not any more", Err: err}
	case apierrors.IsBadRequest(err), apierrors.IsInvalid(err):
		return &peering.Error{Reason: peering.ReasonRequestInvalid, Message: peering.Text(err.Error(), peering.MaxMessageLen), Err: err}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return wire.FromStatus(err)
	}
	return &peering.Error{Reason: peering.ReasonKubernetes, Message: "the provider's cluster says: " + streamCause(err), Err: err}
}

// maxCause is the most bytes of a cause that a peer gets.
const maxCause = 512

// streamCause is why the provider's cluster did not open a stream into a pod: the end
// of the chain, without what the API server, the kubelet and the runtime each put
// before it.
func streamCause(err error) string {
	text := err.Error()
	for _, before := range []string{"in container: ", "OCI runtime exec failed: ", "exec failed: "} {
		if i := strings.LastIndex(text, before); i >= 0 && len(text) > i+len(before) {
			text = text[i+len(before):]
		}
	}
	text = strings.TrimSuffix(text, ": unknown")
	if len(text) > maxCause {
		// What matters is at the end.
		text = "…" + strings.ToValidUTF8(text[len(text)-maxCause:], "")
	}
	return peering.Text(text, maxCause+len("…"))
}
