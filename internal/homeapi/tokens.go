package homeapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// tokens has a token for each pod that calls, in memory only.
type tokens struct {
	client kubernetes.Interface
	now    func() time.Time

	mu  sync.Mutex
	all map[types.UID]*token
}

// token is the token of one pod. The goroutine that holds turn may request another.
type token struct {
	turn  chan struct{}
	value string
	renew time.Time
}

// of returns a token of a pod's ServiceAccount that is bound to the pod: it is valid while the
// pod exists, and for ten minutes at most.
func (t *tokens) of(ctx context.Context, pod *corev1.Pod) (string, error) {
	t.mu.Lock()
	own, ok := t.all[pod.UID]
	if !ok {
		own = &token{turn: make(chan struct{}, 1)}
		t.all[pod.UID] = own
	}
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	select {
	case own.turn <- struct{}{}:
		defer func() { <-own.turn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if own.value != "" && t.now().Before(own.renew) {
		return own.value, nil
	}
	name := serviceAccount(pod)
	got, err := t.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: new(int64(tokenLife / time.Second)),
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request a token of ServiceAccount %s/%s: %w", pod.Namespace, name, err)
	}
	own.value, own.renew = got.Status.Token, t.now().Add(tokenRenew)
	return own.value, nil
}

// forget drops the token of a pod.
func (t *tokens) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, uid)
}
