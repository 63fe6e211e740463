package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// Cache is the agent's cache of objects, which notifies of changes. It may lag behind the API
// server.
type Cache interface {
	ctrlclient.Reader
	// Watch calls handler for each object of a kind that exists and then for each change, one
	// after the other, until stop is called. The handler must not change objects.
	Watch(ctx context.Context, kind ctrlclient.Object, handler toolscache.ResourceEventHandler) (stop func(), err error)
}

// watch calls a handler for changes of several kinds, until stop is called.
func (s *service) watch(ctx context.Context, handler toolscache.ResourceEventHandler, kinds ...ctrlclient.Object) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	for _, kind := range kinds {
		f, err := s.cfg.Cache.Watch(ctx, kind, handler)
		if err != nil {
			stop()
			return nil, fmt.Errorf("watch %T: %w", kind, err)
		}
		stops = append(stops, f)
	}
	return stop, nil
}

// WatchPeers implements AdminService. After each change it sends the peers that differ from what
// it sent before: so a slow reader may miss intermediate states, and never the latest one.
func (s *service) WatchPeers(_ *ententev1.WatchPeersRequest, stream grpc.ServerStreamingServer[ententev1.WatchPeersResponse]) error {
	ctx := stream.Context()
	changed := notify.New()
	stop, err := s.watch(ctx, toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed.Notify() },
		UpdateFunc: func(any, any) { changed.Notify() },
		DeleteFunc: func(any) { changed.Notify() },
	}, &v1alpha1.ForeignCluster{}, &v1alpha1.Contract{}, &v1alpha1.Tunnel{}, &v1alpha1.FabricNode{})
	if err != nil {
		return err
	}
	defer stop()
	// The header is sent at once, even before there is a message, so that a caller knows that it
	// was let through.
	if err := stream.SendHeader(metadata.Pairs(watchBegun, "1")); err != nil {
		return err
	}
	refresh := time.NewTicker(WatchRefresh)
	defer refresh.Stop()
	sent := map[string][sha256.Size]byte{}
	for first := true; ; first = false {
		if err := s.sendPeers(ctx, stream, sent); err != nil {
			return err
		}
		if first {
			if err := stream.Send(&ententev1.WatchPeersResponse{Synced: true}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-refresh.C:
		case <-changed:
			if !notify.Pause(ctx, WatchPause) {
				return context.Cause(ctx)
			}
		}
	}
}

// sendPeers sends each peer whose hash differs from that of the message sent before, and updates
// the hashes.
func (s *service) sendPeers(ctx context.Context, stream grpc.ServerStreamingServer[ententev1.WatchPeersResponse], sent map[string][sha256.Size]byte) error {
	var list v1alpha1.ForeignClusterList
	if err := readAll(ctx, s.cfg.Cache, &list); err != nil {
		return err
	}
	snapshot, err := s.snapshot(ctx, s.cfg.Cache)
	if err != nil {
		return err
	}
	slices.SortFunc(list.Items, byName)
	gone := maps.Clone(sent)
	for i := range list.Items {
		peer := snapshot.peer(&list.Items[i])
		delete(gone, peer.GetName())
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(peer)
		if err != nil {
			return fmt.Errorf("write peer %s: %w", list.Items[i].Name, err)
		}
		hash := sha256.Sum256(b)
		if sent[peer.GetName()] == hash {
			continue
		}
		if err := stream.Send(&ententev1.WatchPeersResponse{Peer: peer}); err != nil {
			return err
		}
		sent[peer.GetName()] = hash
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		if err := stream.Send(&ententev1.WatchPeersResponse{Peer: &ententev1.Peer{Name: name}, Forgotten: true}); err != nil {
			return err
		}
		delete(sent, name)
	}
	return nil
}

func (s *service) WatchEvents(req *ententev1.WatchEventsRequest, stream grpc.ServerStreamingServer[ententev1.WatchEventsResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	only := peerName(req.GetPeer())
	if _, err := peering.ParseClusterID(only); err == nil {
		fc, err := s.foreignCluster(ctx, req.GetPeer())
		if err != nil {
			return err
		}
		only = fc.Name
	}
	queue := make(chan event, WatchQueue)
	put := func(events []event) {
		for _, e := range events {
			if only != "" && e.GetPeer() != "peers/"+only {
				continue
			}
			select {
			case queue <- e:
			default:
				cancel(&peering.Error{Reason: peering.ReasonReaderTooSlow, Message: fmt.Sprintf("%d events wait to be read: watch again, and read faster", WatchQueue)})
				return
			}
		}
	}
	stop, err := s.watch(ctx, toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, initial bool) {
			if !initial { // objects that existed before are not events
				put(happened(nil, o, s.cfg.Now()))
			}
		},
		UpdateFunc: func(before, after any) { put(happened(before, after, s.cfg.Now())) },
		DeleteFunc: func(o any) {
			if lost, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = lost.Obj
			}
			put(happened(o, nil, s.cfg.Now()))
		},
	}, &v1alpha1.ForeignCluster{}, &v1alpha1.PeeringRequest{}, &v1alpha1.Contract{})
	if err != nil {
		return err
	}
	defer stop()
	// From here on nothing is missed, and the caller knows it.
	if err := stream.SendHeader(metadata.Pairs(watchBegun, "1")); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-queue:
			if err := stream.Send(e); err != nil {
				return err
			}
		}
	}
}

// happened returns what happened to an object of any kind. before or after is nil if it was
// created or deleted.
func happened(before, after any, now time.Time) []event {
	switch cmp.Or(after, before).(type) {
	case *v1alpha1.ForeignCluster:
		return between(before, after, now, peerEvents)
	case *v1alpha1.PeeringRequest:
		return between(before, after, now, requestEvents)
	case *v1alpha1.Contract:
		return between(before, after, now, contractEvents)
	}
	return nil
}

func between[T any](before, after any, now time.Time, events func(was, is *T, now time.Time) []event) []event {
	was, _ := before.(*T)
	is, _ := after.(*T)
	return events(was, is, now)
}
