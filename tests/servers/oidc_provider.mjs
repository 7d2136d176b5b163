// An OpenID Connect provider (npm oidc-provider) that signs in anyone, by its own development pages.
// Arguments: the module, the port, the redirect address, the audience, the dashboard's
// redirect address. Logins are "ROLE-NAME".
const [, , module, port, redirect, audience, dashboard] = process.argv;
const { Provider } = await import(module);
const issuer = `http://127.0.0.1:${port}`;
const scopes = "jobs:read jobs:write runs:read runs:write work admin";
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "horarium",
      application_type: "native",
      token_endpoint_auth_method: "none",
      redirect_uris: [redirect],
      response_types: ["code"],
      grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
    },
    {
      client_id: "dashboard",
      client_secret: "dashboard-secret",
      redirect_uris: [dashboard],
      response_types: ["code"],
      grant_types: ["authorization_code"],
    },
    {
      client_id: "robot",
      client_secret: "robot-secret",
      redirect_uris: [],
      response_types: [],
      grant_types: ["client_credentials"],
    },
  ],
  findAccount: (ctx, sub) => ({ accountId: sub, claims: () => ({ sub }) }),
  extraTokenClaims: (ctx, token) => (token.accountId ? { roles: [token.accountId.split("-")[0]] } : {}),
  issueRefreshToken: () => true,
  features: {
    clientCredentials: { enabled: true },
    deviceFlow: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, resource) => {
        if (resource !== audience) throw new Error("unknown resource");
        return { scope: scopes, audience, accessTokenFormat: "jwt", accessTokenTTL: 600, jwt: { sign: { alg: "RS256" } } };
      },
    },
  },
});
provider.on("server_error", (ctx, error) => console.error(error));
provider.listen(Number(port), "127.0.0.1");
