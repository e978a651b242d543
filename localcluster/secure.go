package localcluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certLife is long: a detached cluster may stay for months, and the certificates guard nothing.
const certLife = 10 * 365 * 24 * time.Hour

// rootUser is the name of the user that Auth creates.
const rootUser = "root"

// writeKeyFile makes the secret by which the members of a set know each other.
func writeKeyFile(dir string) error {
	secret := make([]byte, 96)
	_, _ = rand.Read(secret) // never fails, see crypto/rand
	// mongod refuses a key file that others may read.
	return writeNew(filepath.Join(dir, keyFile), []byte(base64.StdEncoding.EncodeToString(secret)+"\n"))
}

// writeNew writes a secret file unless it exists: a directory that is used again keeps its keys.
func writeNew(path string, b []byte) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	return os.WriteFile(path, b, 0o600)
}

// writeCertificates makes a certificate authority and one certificate for all members, valid for
// the loopback addresses and those in a network of their own. The authority's key is not kept.
func writeCertificates(dir string, members []memberState) error {
	if _, err := os.Stat(filepath.Join(dir, serverFile)); err == nil {
		return nil
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make authority key: %w", err)
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "capstan local authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return fmt.Errorf("make authority certificate: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make server key: %w", err)
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1), Subject: pkix.Name{Organization: []string{"capstan"}, CommonName: "localhost"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		// Members of a set show the same certificate to each other as clients.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, m := range members {
		if m.Host != "" {
			server.IPAddresses = append(server.IPAddresses, net.ParseIP(m.Host))
		}
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, key.Public(), caKey)
	if err != nil {
		return fmt.Errorf("make server certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode server key: %w", err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	// The authority first: a server file means that both are there.
	if err := os.WriteFile(filepath.Join(dir, caFile), block("CERTIFICATE", caDER), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, serverFile), append(block("CERTIFICATE", serverDER), block("PRIVATE KEY", keyDER)...), 0o600)
}
