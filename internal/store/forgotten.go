package store

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/peering"
)

// ForgottenSecret is the Secret that keeps which clusters were forgotten, and when. It
// lies where tokens do, so that nobody else needs a right to it.
const ForgottenSecret = "entente-forgotten"

// Forgotten keeps which clusters were trusted here once and then forgotten. A peer that
// does not know of that yet introduces itself because of the trust that was, and would
// be known here again a second later.
//
// It reads the Secret once: the agent is the only one that writes it.
type Forgotten struct {
	Client    client.Client
	Namespace string
	Now       func() time.Time

	mu     sync.Mutex
	loaded bool
	at     map[peering.ClusterID]forgotten
}

// forgotten is when a cluster was forgotten, and whether a policy did that that had
// peered with it by itself, and no person.
type forgotten struct {
	at       time.Time
	byPolicy bool
}

// byPolicy follows the time of those that a policy forgot.
const byPolicy = " policy"

// get returns what is kept of a cluster, lapsed or not.
func (f *Forgotten) get(ctx context.Context, id peering.ClusterID) (was forgotten, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.loaded {
		var secret corev1.Secret
		if err := f.Client.Get(ctx, f.key(), &secret); client.IgnoreNotFound(err) != nil {
			return was, false, fmt.Errorf("read which clusters were forgotten: %w", err)
		}
		f.take(secret.Data)
	}
	was, ok = f.at[id]
	return was, ok, nil
}

// Since returns when a cluster was forgotten, and whether it was, not too long ago.
func (f *Forgotten) Since(ctx context.Context, id peering.ClusterID) (time.Time, bool, error) {
	was, ok, err := f.get(ctx, id)
	if err != nil || !ok || f.Now().Sub(was.at) >= forgottenKept {
		return time.Time{}, false, err
	}
	return was.at, true, nil
}

// ByPerson says whether a cluster was forgotten, and not merely by a policy that ended
// what it had begun. That does not lapse: no policy makes it trusted by itself.
func (f *Forgotten) ByPerson(ctx context.Context, id peering.ClusterID) (bool, error) {
	was, ok, err := f.get(ctx, id)
	return ok && !was.byPolicy, err
}

// Add records that a cluster was forgotten now. Those of policies that lapsed go, and of
// more than there may be the oldest, those of persons last.
func (f *Forgotten) Add(ctx context.Context, id peering.ClusterID) error {
	return f.add(ctx, id, false)
}

// AddByPolicy is Add where a policy ended what it had begun.
func (f *Forgotten) AddByPolicy(ctx context.Context, id peering.ClusterID) error {
	return f.add(ctx, id, true)
}

func (f *Forgotten) add(ctx context.Context, id peering.ClusterID, policy bool) error {
	return f.edit(ctx, func(at map[peering.ClusterID]forgotten) {
		at[id] = forgotten{f.Now(), policy}
		for len(at) > maxForgotten {
			oldest := id
			for other, was := range at {
				if than := at[oldest]; was.byPolicy && !than.byPolicy || was.byPolicy == than.byPolicy && was.at.Before(than.at) {
					oldest = other
				}
			}
			delete(at, oldest)
		}
	})
}

// Remove ends that a cluster counts as forgotten. It costs nothing where it does not.
func (f *Forgotten) Remove(ctx context.Context, id peering.ClusterID) error {
	if _, ok, err := f.get(ctx, id); err != nil || !ok {
		return err
	}
	return f.edit(ctx, func(at map[peering.ClusterID]forgotten) { delete(at, id) })
}

// edit changes what is kept, by compare-and-swap.
func (f *Forgotten) edit(ctx context.Context, change func(map[peering.ClusterID]forgotten)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := EditSecret(ctx, f.Client, f.key(), func(data map[string][]byte) bool {
		f.take(data)
		maps.DeleteFunc(f.at, func(_ peering.ClusterID, was forgotten) bool {
			return was.byPolicy && f.Now().Sub(was.at) >= forgottenKept
		})
		change(f.at)
		clear(data)
		for id, was := range f.at {
			text := was.at.UTC().Format(time.RFC3339Nano)
			if was.byPolicy {
				text += byPolicy
			}
			data[string(id)] = []byte(text)
		}
		return true
	})
	if err != nil {
		f.loaded = false // it is not known what is stored now
		return fmt.Errorf("record which clusters were forgotten: %w", err)
	}
	return nil
}

func (f *Forgotten) key() client.ObjectKey {
	return client.ObjectKey{Namespace: f.Namespace, Name: ForgottenSecret}
}

// take remembers what the Secret says. What cannot be read of it is dropped. The lock
// is held.
func (f *Forgotten) take(data map[string][]byte) {
	f.loaded, f.at = true, make(map[peering.ClusterID]forgotten, len(data))
	for id, text := range data {
		text, policy := strings.CutSuffix(string(text), byPolicy)
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			f.at[peering.ClusterID(id)] = forgotten{at, policy}
		}
	}
}
