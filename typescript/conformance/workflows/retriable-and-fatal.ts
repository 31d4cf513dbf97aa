import { FatalError, getStepMetadata, RetryableError } from 'workflow';

export async function retryableAndFatalErrorWorkflow() {
  'use workflow';
  const retryableResult = await secondTry();
  try {
    await hopeless();
  } catch (error) {
    return { retryableResult, gotFatalError: FatalError.is(error) };
  }
  return { retryableResult, gotFatalError: false };
}

async function secondTry() {
  'use step';
  const { attempt, stepStartedAt } = getStepMetadata();
  if (attempt === 1) throw new RetryableError('once more', { retryAfter: '2s' });
  return { attempt, stepStartedAt, duration: Date.now() - stepStartedAt.getTime() };
}

async function hopeless() {
  'use step';
  throw new FatalError('hopeless');
}
