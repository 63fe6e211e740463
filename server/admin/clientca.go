package admin

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// clientCA is the certificate authority with which the cluster's API server
// knows its users. The API server publishes it for servers such as this one, in
// the ConfigMap kube-system/extension-apiserver-authentication.
type clientCA struct {
	client kubernetes.Interface
	log    *slog.Logger

	mu   sync.RWMutex
	pool *x509.CertPool
}

const (
	clientCANamespace = "kube-system"
	clientCAConfigMap = "extension-apiserver-authentication"
	clientCAKey       = "client-ca-file"
)

// get returns the authority, or nil while it is not known.
func (c *clientCA) get() *x509.CertPool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.pool
}

// run reads the authority again and again until ctx ends, first after a pause. One
// that was read stays while it cannot be read again, and goes when the cluster has
// none.
func (c *clientCA) run(ctx context.Context, pause time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = c.read(ctx)
	}
}

// read reads the authority, and returns after what pause to read it again.
func (c *clientCA) read(ctx context.Context) time.Duration {
	if err := c.refresh(ctx); err != nil && ctx.Err() == nil {
		c.log.WarnContext(ctx, "read the cluster's client CA; certificates are judged by the one read before", "err", err)
		return ClientCARefresh / 6
	}
	return ClientCARefresh
}

func (c *clientCA) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cm, err := c.client.CoreV1().ConfigMaps(clientCANamespace).Get(ctx, clientCAConfigMap, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get ConfigMap %s/%s: %w", clientCANamespace, clientCAConfigMap, err)
	}
	var pool *x509.CertPool
	if err == nil && cm.Data[clientCAKey] != "" {
		pool = x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(cm.Data[clientCAKey])) {
			return errors.New(clientCAKey + " has no certificate")
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pool = pool
	return nil
}
