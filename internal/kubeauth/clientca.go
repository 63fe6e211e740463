package kubeauth

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConfigMap and ConfigMapKey are where the API server publishes the certificate authority
// of its clients, in namespace kube-system.
const (
	ConfigMap    = "extension-apiserver-authentication"
	ConfigMapKey = "client-ca-file"
)

// Run keeps the client CA up to date until ctx ends. The last one is kept while it cannot be read
// again, and removed when the cluster no longer publishes it.
func (r *Reviewer) Run(ctx context.Context) {
	for {
		pause := ClientCARefresh
		if err := r.Refresh(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Log.WarnContext(ctx, "read the cluster's client CA; certificates are verified against the one read before", "err", err)
			pause /= 6
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Refresh reads the client CA.
func (r *Reviewer) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ReviewTimeout)
	defer cancel()
	cm, err := r.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, ConfigMap, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get ConfigMap %s/%s: %w", metav1.NamespaceSystem, ConfigMap, err)
	}
	var pool *x509.CertPool
	if err == nil && cm.Data[ConfigMapKey] != "" {
		pool = x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(cm.Data[ConfigMapKey])) {
			return errors.New(ConfigMapKey + " has no certificate")
		}
	}
	r.ca.Store(pool)
	return nil
}
