package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// guard refuses what comes from a page in somebody's browser. A page can send requests to 127.0.0.1, and by changing what its own name
// resolves to (DNS rebinding) it can read the answers too; but it can neither change the Host header, which then is that name, nor
// leave out Origin where a request could change something.
func (s *Server) guard(addr net.Addr, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if addr.Network() != "unix" && !s.mine(r.Host) {
			fail(w, http.StatusMisdirectedRequest, "the name "+r.Host+" is not one of this listener's", "ask by IP address or localhost, or add the name to admin.hosts")
			return
		}
		if crossSite(r) {
			fail(w, http.StatusForbidden, "requests of other web pages are not answered", "use capstan status, curl, or a page of this address")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// mine reports whether a Host header names this listener. An IP address always does: nobody can make a name of one.
func (s *Server) mine(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err == nil || host == "localhost" {
		return true
	}
	return slices.ContainsFunc(s.cfg.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// crossSite reports whether a browser says that a page of another origin sent this.
func crossSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host == "" || u.Host != r.Host
}

// allowed reports whether a request may change something, and answers it if not.
func (s *Server) allowed(w http.ResponseWriter, r *http.Request) bool {
	token := s.cfg.Token()
	if token == "" {
		fail(w, http.StatusForbidden, "control verbs are disabled: no token is configured", "set admin.token_file in the daemon's configuration and reload it")
		return false
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	// Of hashes, so that the length of the token does not show either.
	want, got := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(strings.TrimSpace(given)))
	if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(want[:], got[:]) != 1 {
		s.log.Warn().Str("remote", r.RemoteAddr).Str("path", r.URL.Path).Msg("a control verb came without the right token")
		w.Header().Set("WWW-Authenticate", `Bearer realm="capstan"`)
		fail(w, http.StatusUnauthorized, "the token is missing or wrong", "Authorization: Bearer TOKEN; capstan replicate reads it from --token-file")
		return false
	}
	return true
}
