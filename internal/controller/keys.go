package controller

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/internal/presharedkeys"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// keysTimeout is how long a write of tunnels' keys may take.
const keysTimeout = 30 * time.Second

// fabricKeys is what is known of the Secret with the keys of all tunnels. The zero value knows nothing.
type fabricKeys struct {
	// writing is locked while the Secret is read and written.
	writing sync.Mutex

	mu sync.Mutex
	// stored is the content of the Secret at the given version.
	version string
	stored  map[string][]byte
	// next is written after the current batch; nil if no caller waits.
	next *keyBatch
}

// keyBatch is a set of keys that are written together.
type keyBatch struct {
	edits []peerEdit
	done  chan struct{}
	err   error // once done is closed
}

// peerEdit is an edit of the keys of one peer. A batch may have several of a peer.
type peerEdit struct {
	peer peering.ClusterID
	edit presharedkeys.Edit
}

// storeKeys changes the keys of the tunnel to a peer in the fabric's Secret. Peers that come at the same time wait
// for one write of all their keys. Keys that are stored already cost nothing.
func (s *States) storeKeys(ctx context.Context, peer peering.ClusterID, edit presharedkeys.Edit) error {
	if s.hasKeys(ctx, peer, edit) {
		return nil
	}
	if err := s.Budget.TakeBytes(peer, keyCost); err != nil {
		return err
	}
	k := &s.keys
	k.mu.Lock()
	batch, first := k.next, k.next == nil
	if first {
		batch = &keyBatch{done: make(chan struct{})}
		k.next = batch
	}
	batch.edits = append(batch.edits, peerEdit{peer, edit})
	k.mu.Unlock()
	if first {
		s.writeKeys(ctx, batch)
	}
	select {
	case <-batch.done:
		return batch.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hasKeys reports whether the Secret is known to be as an edit leaves it.
func (s *States) hasKeys(ctx context.Context, peer peering.ClusterID, edit presharedkeys.Edit) bool {
	if s.Versions == nil {
		return false
	}
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := s.Versions.Get(ctx, s.secretKey(), now); err != nil {
		return false // writeKeys checks
	}
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	return now.ResourceVersion == s.keys.version && presharedkeys.IsStored(edit, s.keys.stored, peer)
}

// writeKeys writes a batch when the write before it is done. From then on no peer can join the batch.
func (s *States) writeKeys(ctx context.Context, batch *keyBatch) {
	// The batch is not only for the peer whose session may end now.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keysTimeout)
	defer cancel()
	k := &s.keys
	k.writing.Lock()
	defer k.writing.Unlock()
	k.mu.Lock()
	k.next = nil
	k.mu.Unlock()
	defer close(batch.done)
	secret, err := store.EditSecret(ctx, s.Client, s.secretKey(), func(data map[string][]byte) bool {
		changed := false
		for _, e := range batch.edits {
			changed = e.edit.Apply(data, e.peer) || changed
		}
		return changed
	})
	if err != nil {
		batch.err = fmt.Errorf("store the keys of %d tunnels: %w", len(batch.edits), err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.version, k.stored = secret.ResourceVersion, maps.Clone(secret.Data)
}
