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

// ForgottenSecret is the Secret that records which clusters were forgotten, and when. It is in the namespace of the
// tokens, so that no other account needs a right to it.
const ForgottenSecret = "entente-forgotten"

// Forgotten records which clusters were trusted here once and then forgotten. A peer that does not know of that yet
// introduces itself because of the former trust, and would be known here again a second later.
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

// forgotten is when a cluster was forgotten, and whether that was done by the policy that had peered with it, and
// not by an administrator.
type forgotten struct {
	at       time.Time
	byPolicy bool
}

// byPolicy follows the time of a cluster that a policy forgot.
const byPolicy = " policy"

// get returns the record of a cluster, lapsed or not.
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

// Since returns when a cluster was forgotten, and whether it was within forgottenKept.
func (f *Forgotten) Since(ctx context.Context, id peering.ClusterID) (time.Time, bool, error) {
	was, ok, err := f.get(ctx, id)
	if err != nil || !ok || f.Now().Sub(was.at) >= forgottenKept {
		return time.Time{}, false, err
	}
	return was.at, true, nil
}

// ByPerson reports whether an administrator forgot a cluster, and not merely a policy that ended what it had begun.
// That does not lapse: no policy makes it trusted again by itself.
func (f *Forgotten) ByPerson(ctx context.Context, id peering.ClusterID) (bool, error) {
	was, ok, err := f.get(ctx, id)
	return ok && !was.byPolicy, err
}

// Add records that a cluster was forgotten now. Records of policies that lapsed are removed, and beyond the limit
// the oldest, those of administrators last.
func (f *Forgotten) Add(ctx context.Context, id peering.ClusterID) error {
	return f.add(ctx, id, false)
}

// AddByPolicy is Add for a policy that ended what it had begun.
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

// Remove makes a cluster count as forgotten no longer. It costs nothing if it did not.
func (f *Forgotten) Remove(ctx context.Context, id peering.ClusterID) error {
	if _, ok, err := f.get(ctx, id); err != nil || !ok {
		return err
	}
	return f.edit(ctx, func(at map[peering.ClusterID]forgotten) { delete(at, id) })
}

// edit changes the records by compare-and-swap.
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
		f.loaded = false // the stored state is unknown now
		return fmt.Errorf("record which clusters were forgotten: %w", err)
	}
	return nil
}

func (f *Forgotten) key() client.ObjectKey {
	return client.ObjectKey{Namespace: f.Namespace, Name: ForgottenSecret}
}

// take parses the Secret's data. Malformed records are dropped. The caller holds the lock.
func (f *Forgotten) take(data map[string][]byte) {
	f.loaded, f.at = true, make(map[peering.ClusterID]forgotten, len(data))
	for id, text := range data {
		text, policy := strings.CutSuffix(string(text), byPolicy)
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			f.at[peering.ClusterID(id)] = forgotten{at, policy}
		}
	}
}
