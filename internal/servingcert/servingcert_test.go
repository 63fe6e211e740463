package servingcert

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"

	"github.com/entente-dev/entente/internal/waittest"
)

// signed is a cluster that signs what is approved.
func signed(t *testing.T, ca *x509.Certificate, key crypto.Signer) *fake.Clientset {
	client := fake.NewSimpleClientset()
	serial := int64(100)
	client.PrependReactor("create", "certificatesigningrequests", func(a k8stesting.Action) (bool, runtime.Object, error) {
		csr := a.(k8stesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		if serial++; serial > 101 {
			// The fake knows no field selectors: a watch of one sees all.
			if err := client.Tracker().Delete(certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), "", fmt.Sprint("csr-", serial-1)); err != nil {
				return true, nil, err
			}
		}
		csr.Name, csr.UID = fmt.Sprint("csr-", serial), "csr"
		return false, nil, nil
	})
	client.PrependReactor("update", "certificatesigningrequests", func(a k8stesting.Action) (bool, runtime.Object, error) {
		csr := a.(k8stesting.UpdateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		if a.GetSubresource() != "approval" || len(csr.Status.Conditions) != 1 || csr.Status.Conditions[0].Type != certificatesv1.CertificateApproved {
			return true, nil, fmt.Errorf("not an approval: %+v", csr)
		}
		block, _ := pem.Decode(csr.Spec.Request)
		req, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return true, nil, err
		}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: req.Subject, IPAddresses: req.IPAddresses, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}, ca, req.PublicKey, key)
		if err != nil {
			return true, nil, err
		}
		csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		return false, nil, nil
	})
	return client
}

func TestTheServingCertificateIsIssuedApprovedAndFollowsTheAddress(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "ca"}, key)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	address := netip.MustParseAddr("10.1.2.3")
	s, err := New(Config{Client: signed(t, ca, key), NodeName: "agent", Addresses: func() []netip.Addr {
		mu.Lock()
		defer mu.Unlock()
		return []netip.Addr{address}
	}})
	if err != nil {
		t.Fatal(err)
	}
	leaf := func() *x509.Certificate {
		t.Helper()
		c, err := s.GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := leaf(); !strings.HasPrefix(l.Issuer.CommonName, "system:node:agent-ca@") || !l.IPAddresses[0].Equal(net.IPv4(10, 1, 2, 3)) {
		t.Errorf("before the first one is issued: %s for %v", l.Issuer, l.IPAddresses)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	wait := func(what string, ok func(*x509.Certificate) bool) {
		t.Helper()
		if !waittest.Soon(func() bool { return ok(leaf()) }) {
			t.Errorf("%s: certificate is of %s for %v", what, leaf().Issuer, leaf().IPAddresses)
		}
	}
	wait("issued", func(l *x509.Certificate) bool {
		return l.Issuer.CommonName == "ca" && l.Subject.CommonName == "system:node:agent" && l.Subject.Organization[0] == "system:nodes" && l.IPAddresses[0].Equal(net.IPv4(10, 1, 2, 3))
	})
	mu.Lock()
	address = netip.MustParseAddr("10.1.2.4")
	mu.Unlock()
	wait("re-issued", func(l *x509.Certificate) bool {
		return l.Issuer.CommonName == "ca" && l.IPAddresses[0].Equal(net.IPv4(10, 1, 2, 4))
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
