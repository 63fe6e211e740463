package store

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// PublishCA stores a certificate authority, PEM, in the ConfigMap where clients of the admin API look for it.
func PublishCA(ctx context.Context, c client.Client, namespace, name, key string, pem []byte) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	err := publish(ctx, c, cm, func() {
		metav1.SetMetaDataLabel(&cm.ObjectMeta, v1alpha1.LabelManaged, v1alpha1.Manager)
		cm.Data = map[string]string{key: string(pem)}
	})
	if err != nil {
		return fmt.Errorf("publish the certificate authority in ConfigMap %s/%s: %w", namespace, name, err)
	}
	return nil
}

// PublishPair stores a certificate and its key in a Secret of the type that pods mount.
func PublishPair(ctx context.Context, c client.Client, namespace, name string, certificate, key []byte) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	err := publish(ctx, c, secret, func() {
		metav1.SetMetaDataLabel(&secret.ObjectMeta, v1alpha1.LabelManaged, v1alpha1.Manager)
		secret.Type = corev1.SecretTypeTLS
		secret.Data = map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key}
	})
	if err != nil {
		return fmt.Errorf("store a certificate in Secret %s/%s: %w", namespace, name, err)
	}
	return nil
}

// publish creates or updates an object with set. A rollover and the renewal that follows it publish at the same
// time.
func publish(ctx context.Context, c client.Client, o client.Object, set func()) error {
	return retryOnConflict(func() error {
		_, err := controllerutil.CreateOrUpdate(ctx, c, o, func() error { set(); return nil })
		return err
	})
}
